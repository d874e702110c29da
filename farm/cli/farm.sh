#!/usr/bin/env bash
#SBATCH --job-name=farm
#SBATCH --output=farm-%j.out
#SBATCH --open-mode=append
#SBATCH --no-kill
# A farm in one SLURM job: the front door on its first node, workers on all of its nodes.
#
#   sbatch [SBATCH OPTIONS] farm.sh [OPTIONS] MODEL... [+ [OPTIONS] MODEL...]... [-- COMMAND...]
#
#   sbatch -N 4 --exclusive farm.sh beam.py
#   sbatch -N 2 -n 8 farm.sh beam.py -- farm sweep --param x=0:1 --design sobol:256 -o s.h5
#   sbatch -N 2 --gpus-per-node=4 farm.sh --gpus auto surrogate.py
#   sbatch -N 4 -n 64 farm.sh --mpi 16 solver.py
#   sbatch -N 4 --exclusive : -p gpu --gpus-per-node=2 farm.sh beam.py + --gpus auto surrogate.py
#
# Without a COMMAND the farm serves until the job ends. A COMMAND runs on the first node with FARM_CONNECTION (the
# connection file) and FARM_URL (for any UM-Bridge client) set, and the job ends with its exit status.
#
# A + begins another kind of workers, with models and options of its own. In a heterogeneous job the first kind runs on
# the first component and so on; a single kind runs on all of them. In other jobs the kinds share all nodes, and each
# needs its number of workers.
#
#   --cpus N           CPUs of one worker, or of one MPI rank [--cpus-per-task of the job, or else 1]
#   --workers N        workers on each node, or on each GPU; with --mpi: groups in the job [as many as fit]
#   --gpus auto|0,1    a worker for each GPU of a node, or for each of these
#   --mpi RANKS        each worker is a group of MPI ranks, in a step of its own
#   --time-limit S     kill a model call that runs longer
#
#   --dir DIR          run folder, which all nodes see [farm-JOBID]
#   --to DIR           no front door here: the workers join the farm with this run folder or connection file
#   --dask ADDRESS     no workers here: the models run on the Dask cluster with this scheduler, or scheduler file
#   --check            no farm: start each step of the workers for a moment, to see whether this job can have them
#
# MPI_TYPE is the value of srun's --mpi: pmi2 for MPICH and Intel MPI [pmi2], pmix for Open MPI.
# FARM=/path/to/farm selects another program than that of the environment whose `farm launcher` wrote this file.
set -uo pipefail
program=''

serving='' running='' helping='' watching='' early='' steps=() kind_of_step=() ended=() supervisors=() status=0
# How long before the time limit the farm begins to end: a sixth of the limit, at most a minute. Running calls get three
# fifths of this time, and workers begin none that would take longer. The command gets four fifths, then SIGINT,
# and SIGKILL once the farm has ended.
warning=60 ends_at=0 ask_at=0 pause=30 calls_until=''

usage() { sed -n '/^# A farm in/,/^# FARM=/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
say() { printf 'farm.sh: %s\n' "$*" >&2; }
die() { say "$@"; exit 2; }
alive() { [[ -n $1 ]] && kill -0 -- "$1" 2>/dev/null; } # a process, or after a minus sign a group
any_alive() { # in a trap, a bare `return` returns the status of the command before the trap
    local pid
    for pid; do ! alive "$pid" || return 0; done
    return 1
}

# Waits until one of these processes ends, for some seconds at most. A signal interrupts the wait.
wait_any() {
    local pid pids=()
    for pid in "${@:2}"; do ! alive "$pid" || pids+=("$pid"); done
    sleep "$1" &
    helping=$!
    wait -n "$helping" "${pids[@]}"
    kill "$helping" 2>/dev/null
    wait "$helping" 2>/dev/null
    helping=''
}

# Waits until all of these processes have ended, for some seconds at most.
wait_all() {
    local tenths=$((10 * $1))
    for ((; tenths > 0; tenths--)); do
        any_alive "${@:2}" || return 0
        sleep 0.1
    done
    ! any_alive "${@:2}"
}

# Ends the command, then the farm. The exit status is the command's; without one, or after a loss, it is the argument.
end() {
    trap '' TERM INT USR1
    status=$1 early=yes calls_until=$((SECONDS + warning * 3 / 5))
    local own
    if alive "$running"; then
        kill -TERM -- "-$running"
        if wait_all $((warning * 4 / 5)) "-$running"; then
            wait "$running"
            own=$?
            ((own)) || early=''
            (($1 == 1 && !own)) || status=$own
        else
            say "the command still runs $((warning * 4 / 5)) s after its SIGTERM; the farm ends without waiting for it"
            kill -INT -- "-$running" 2>/dev/null # a sweep then leaves at once
            status=143
        fi
    fi
    finish
}

finish() {
    trap '' TERM INT USR1
    local patience=10 step
    [[ -z $helping ]] || kill "$helping" 2>/dev/null
    [[ -z $watching ]] || kill -TERM "$watching" 2>/dev/null
    if [[ -n $serving ]]; then
        # The front door lets running calls finish and stops the workers, which ends their steps.
        kill -TERM "$serving" 2>/dev/null
        [[ -z $calls_until ]] || wait_all $((calls_until - SECONDS)) "$serving" || kill -TERM "$serving" 2>/dev/null
        wait "$serving"
    elif any_alive "${steps[@]}"; then
        # The workers of another front door: SIGTERM drains them. To srun itself it would mean to kill its step.
        patience=$((warning * 4 / 5))
        scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null
        for step in "${supervisors[@]}"; do kill -TERM "$step" 2>/dev/null; done
    fi
    wait_all "$patience" "${steps[@]}"
    for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null; done
    for step in "${steps[@]}"; do wait "$step"; done
    # Where SLURM does not find all processes of a job, a sweep that is left would lock its file against the next job.
    [[ -z $running ]] || wait_all $((warning / 5)) "-$running" || kill -KILL -- "-$running" 2>/dev/null
    [[ -z $early ]] || await_pre_emption
    exit "$status"
}

# Waits for SLURM to take the nodes, if it pre-empts this job. With a grace time SLURM first asks the steps to end, and
# requeues the job at the end of that time, but only if the job is still there.
await_pre_emption() {
    local shown until seconds
    shown=$(SLURM_TIME_FORMAT=standard timeout 5 scontrol -o show job "$SLURM_JOB_ID" 2>/dev/null | head -n 1)
    [[ $shown =~ \ PreemptTime=[0-9] && $shown =~ \ EndTime=([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}) ]] || return 0
    until=${BASH_REMATCH[1]}
    # SLURM needs some seconds more, and with OverTimeLimit it ends no job before that.
    seconds=$(($(date -d "$until" +%s) - $(date +%s) + 60))
    say "SLURM pre-empts this job: it waits for its end or requeue at $until"
    sleep "$seconds" &
    helping=$!
    trap 'kill "$helping" 2>/dev/null; exit "$status"' TERM INT
    wait "$helping"
}
trap 'end 143' TERM
trap 'end 130' INT
trap 'end 0' USR1

# Learns when the job ends. Limits can be changed while a job runs.
ask_for_end() {
    local known=$ends_at text
    text=$(SLURM_TIME_FORMAT=standard timeout 15 squeue -h -j "$SLURM_JOB_ID" -o %e 2>/dev/null | head -n 1)
    if [[ $text =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}T ]]; then
        ends_at=$(date -d "$text" +%s)
    elif ((!ends_at)) && [[ ${SLURM_JOB_END_TIME:-} =~ ^[0-9]+$ ]]; then
        ends_at=$SLURM_JOB_END_TIME
    fi
    if ((ends_at && !known && (ends_at - now) / 6 < warning)); then
        warning=$(((ends_at - now) / 6))
        ((warning >= 5)) || warning=5
    fi
}

# Ends the farm shortly before the job's time limit; otherwise sets `pause`, the seconds after which to look again.
# SLURM's own warning (--signal) would come a fixed time before the limit, and up to a minute earlier: in a job of one
# minute before this script has begun.
watch_limit() {
    local now half
    printf -v now '%(%s)T' -1
    if ((now >= ask_at || (ends_at && now >= ends_at - warning))); then
        ask_for_end
        half=$((ends_at ? (ends_at - now) / 2 : 60))
        ask_at=$((now + (half < 10 ? 10 : half > 600 ? 600 : half)))
    fi
    if ((ends_at && now >= ends_at - warning)); then
        say "the job ends in $((ends_at - now)) s: the farm ends"
        end 0
    fi
    pause=$((ends_at && ends_at - warning - now < 30 ? ends_at - warning - now : 30))
}

# ---- the words -------------------------------------------------------------------------------------------------------

dir='' connect='' dask='' check='' command=() models=() kind_of_model=() kinds=1
cpus=('') workers=('') gpus=('') ranks=('') limit=('')
while (($#)); do
    last=$((kinds - 1))
    case $1 in
        --help | -h) usage; exit 0 ;;
        --check) check=yes; shift ;;
        --)
            command=("${@:2}")
            ((${#command[@]})) || die "which COMMAND? There is none after --"
            break ;;
        +)
            [[ " ${kind_of_model[*]} " == *" $last "* ]] || die "which MODEL? There is none before +"
            cpus+=('') workers+=('') gpus+=('') ranks+=('') limit+=('') kinds=$((kinds + 1))
            shift ;;
        --cpus | --workers | --gpus | --mpi | --time-limit | --dir | --to | --dask)
            (($# > 1)) || die "$1 needs a value"
            case $1 in
                --cpus) cpus[last]=$2 ;;
                --workers) workers[last]=$2 ;;
                --gpus) gpus[last]=$2 ;;
                --mpi) ranks[last]=$2 ;;
                --time-limit) limit[last]=$2 ;;
                --dir) dir=$2 ;;
                --to) connect=$2 ;;
                --dask) dask=$2 ;;
            esac
            shift 2 ;;
        --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        -*) die "there is no option $1; see farm.sh --help. Options of sbatch stand before the script" ;;
        *)
            models+=("$1") kind_of_model+=("$last")
            shift ;;
    esac
done
[[ " ${kind_of_model[*]} " == *" $((kinds - 1)) "* ]] || die "which MODEL? See farm.sh --help"
number() { [[ -z $2 || $2 =~ ^[1-9][0-9]*$ ]] || die "$1 is $2; expected a number above 0"; }
for ((k = 0; k < kinds; k++)); do
    number --cpus "${cpus[k]}"
    number --workers "${workers[k]}"
    number --mpi "${ranks[k]}"
    [[ -z ${limit[k]} || ${limit[k]} =~ ^[0-9]*\.?[0-9]+$ ]] || die "--time-limit is ${limit[k]}; expected seconds"
    [[ -z ${ranks[k]} || -z ${gpus[k]} ]] || die "--gpus gives GPUs to single processes; SLURM assigns those of MPI ranks"
    [[ -z $dask || -z ${cpus[k]}${workers[k]}${gpus[k]}${ranks[k]}${limit[k]} ]] ||
        die "--cpus, --workers, --gpus, --mpi and --time-limit are for workers of this job; with --dask there are none"
done
[[ -z $dask ]] || ((kinds == 1)) || die "--dask runs all models on the Dask cluster; + is for kinds of workers in this job"
[[ -z $connect || -z $dask$dir ]] || die "--to is for a farm that runs elsewhere; --dir and --dask are for one in this job"
[[ -z $connect ]] || ((!${#command[@]})) || die "--to only adds workers to a farm; run the COMMAND beside its front door"
for model in "${models[@]}"; do
    file=${model#*=} file=${file%:*}
    [[ $file != *.@(py|onnx|pt2) || -e $file ]] || die "there is no file $file in $PWD on $(hostname)"
done
[[ -n ${SLURM_JOB_ID:-} ]] || die "this is no SLURM job; submit it with sbatch, or use: farm serve ${models[*]}"

# ---- the arithmetic --------------------------------------------------------------------------------------------------

components=${SLURM_HET_SIZE:-1} counts=() places=()
plural() { (($1 == 1)) && printf '%s %s' "$1" "$2" || printf '%s %ss' "$1" "$2"; }
models_of() { local i; for i in "${!models[@]}"; do ((kind_of_model[i] != $1)) || printf '%s\n' "${models[i]}"; done; }

# Prints SLURM's value for a component of a heterogeneous job, or for another job.
of() {
    local name=$1
    ((components == 1)) || name+=_HET_GROUP_$2
    printf '%s' "${!name:-}"
}

# Prints the CPUs of each node: 4(x2),2 is 4 4 2.
node_cpus() {
    local part times
    for part in $(of SLURM_JOB_CPUS_PER_NODE "$1" | tr , ' '); do
        times=1
        [[ ! $part =~ x([0-9]+) ]] || times=${BASH_REMATCH[1]}
        for ((; times > 0; times--)); do echo "${part%%(*}"; done
    done
}

# Finds how many workers of a kind a component has room for: sets count, taken (CPUs) and what (words).
plan() {
    local k=$1 g=$2 n most=0 total=0 tasks=0 room each given told nodes where=''
    nodes=$(of SLURM_JOB_NUM_NODES "$g")
    given=$(of SLURM_CPUS_PER_TASK "$g")
    each=${cpus[k]:-${given:-1}}
    for n in $(node_cpus "$g"); do
        most=$((n > most ? n : most)) total=$((total + n)) tasks=$((tasks + n / each))
    done
    ((components == 1)) || where=" of component $g"
    count=${workers[k]}
    if [[ -n ${ranks[k]} ]]; then
        told=$(of SLURM_NTASKS "$g")
        [[ -z $told || -n ${cpus[k]} ]] || tasks=$told
        room=$((tasks / ranks[k]))
        count=${count:-$((room ? room : 1))}
        ((count <= room)) || die "--mpi ${ranks[k]}: $(plural "$count" group) of ${ranks[k]} ranks need" \
            "$((count * ranks[k])) tasks with $(plural "$each" CPU) each, and the job$where has $tasks:" \
            "request them, as by sbatch -n $((count * ranks[k])) -c $each"
        taken=$((count * ranks[k] * each))
        what="$(plural "$count" group) of $(plural "${ranks[k]}" rank) with $(plural "$each" CPU) each on $(plural "$nodes" node)"
    elif [[ -n ${gpus[k]} ]]; then
        taken=0 what="$(plural "${count:-1}" worker) for each GPU (--gpus ${gpus[k]}) on $(plural "$nodes" node)"
    elif [[ -n $count ]]; then
        taken=$((nodes * count * ${cpus[k]:-0}))
        ((count * ${cpus[k]:-0} <= most)) || die "--workers $count with --cpus ${cpus[k]} need $((count * cpus[k])) CPUs on a" \
            "node, and the job$where has $most: request them, as by sbatch --ntasks-per-node=$count -c ${cpus[k]}"
        what="$(plural "$count" worker) on each of $(plural "$nodes" node)"
    else
        ((each <= most)) || die "--cpus $each: a worker needs $each CPUs on a node, and the job$where has $most:" \
            "request them, as by sbatch -N $nodes --ntasks-per-node=1 -c $each"
        taken=$total what="$(plural "$tasks" worker) with $(plural "$each" CPU) each on $(plural "$nodes" node)"
        ((kinds == 1 || components == kinds)) ||
            die "several kinds share the nodes of this job, so each needs its number: --workers N or --gpus for" \
                "$(models_of "$k" | tr '\n' ' ')(or a component of a heterogeneous job for each kind)"
    fi
}

if [[ -z $dask ]]; then
    ((kinds == 1 || components == 1 || components == kinds)) ||
        die "the job has $components components and the words name $kinds kinds of workers; expected one component for" \
            "each kind, in the same order (sbatch ... : ... farm.sh ... + ...), or a single kind"
    for ((g = 0; g < components; g++)); do
        sum=0 all=0
        for n in $(node_cpus "$g"); do all=$((all + n)); done
        for ((k = 0; k < kinds; k++)); do
            ((kinds == 1 || components == 1 || k == g)) || continue
            plan "$k" "$g"
            counts+=("$count") places+=("$k $g") sum=$((sum + taken))
            printf '%s: %s\n' "$(models_of "$k" | paste -sd ' ')" "$what"
        done
        ((sum <= all)) || die "the kinds need $sum CPUs together, and the job has $all: request more, or fewer --workers"
    done
elif ((components > 1 || ${SLURM_JOB_NUM_NODES:-1} > 1)); then
    say "with --dask this job uses its first node only; the others idle unless the COMMAND uses them"
fi

# ---- the environment -------------------------------------------------------------------------------------------------

farm=${FARM:-${program:-farm}}
found=$(command -v "$farm") || {
    [[ $farm != */* ]] || die "$(hostname) does not see $farm: put the environment into a folder that all nodes see"
    die "no $farm on the PATH: activate farm's environment before sbatch, submit the file that \`farm launcher\` writes," \
        "or set FARM to the path of the program"
}
farm=$(realpath -s "$found")
# The COMMAND finds the same farm and Python, as if the environment were active.
[[ $(command -v farm) == "$farm" ]] || PATH=$(dirname "$farm"):$PATH
((!${#command[@]})) || command -v "${command[0]}" >/dev/null || die "there is no program ${command[0]} on $(hostname)"
# `farm launcher --check` asks for a job that does not exist.
[[ -z $check || $SLURM_JOB_ID != 0 ]] || exit 0
# With sbatch --export, steps would get another environment than this script has.
export SLURM_EXPORT_ENV=ALL
# srun reads the job's request for tasks, CPUs, memory and GPUs from its environment. It is a request for all nodes and
# all tasks together, so steps run without it and request what they need.
sizes='^S(LURM|RUN)_((NTASKS|GPUS)(_PER_.+)?|(CPUS|MEM|TRES)_PER_.+|NPROCS|OVERCOMMIT|(STEP_)?GRES|(GPU|TRES)_BIND)$'
bare=(env)
for name in $(compgen -e); do [[ ! $name =~ $sizes ]] || bare+=(-u "$name"); done

watch_limit
# Workers and the command learn from here how long calls may run.
((!ends_at)) || export FARM_ENDS_AT=$((ends_at - warning * 2 / 5))
# A test step before all else: if steps cannot start, they often wait for ever without a message.
"${bare[@]}" timeout --kill-after=5 "${FARM_PROBE_S:-60}" srun --overlap --nodes=1 --ntasks=1 --mem=0 --gres=none true &
helping=$!
wait "$helping" ||
    die "srun cannot start a step in this job (exit status $?); what it says is above. Does the job have a CPU left?"
helping=''

# Finds how many GPUs a component has on its nodes: sets total, and with[N], the nodes that have N of them.
count_gpus() {
    local words word rest nodes n
    total=0 with=()
    read -ra words < <(scontrol -o -d show job "$SLURM_JOB_ID" | grep "^JobId=$(of SLURM_JOB_ID "$1") ")
    for word in "${words[@]}"; do
        [[ $word != Nodes=* ]] || nodes=${word#*=}
        [[ $word == GRES=* ]] || continue
        n=0 rest=$word # GRES=gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:2)
        while [[ $rest =~ [=,]gpu:([^:,\(]+:)?([0-9]+)(.*) ]]; do n=$((n + BASH_REMATCH[2])) rest=${BASH_REMATCH[3]}; done
        with[n]+=${with[n]:+,}$nodes total=$((total + n * $(scontrol show hostnames "$nodes" | wc -l)))
    done
}

# Starts the workers of a kind in a component of the job.
start_workers() {
    local k=$1 g=$2 count=$3 words nodes node group=() own=() each total with n i
    nodes=$(of SLURM_JOB_NUM_NODES "$g")
    count_gpus "$g"
    mapfile -t words < <(models_of "$k")
    words=("$farm" worker --to "$connection" "${words[@]}")
    [[ -z ${limit[k]} ]] || words+=(--time-limit "${limit[k]}")
    ((components == 1)) || group=(--het-group="$g")
    ((kinds == 1)) || own=(FARM_KIND="$((k + 1))")
    if [[ -n ${ranks[k]} ]]; then
        each=$(of SLURM_GPUS_PER_TASK "$g") n=$((total / (count * ranks[k])))
        # The groups share the GPUs; otherwise the first one would get all of them.
        if [[ -n $each ]] || ((n)); then group+=(--gpus-per-task="${each:-$n}")
        elif ((total >= count)); then group+=(--gpus="$((total / count))")
        elif ((total)); then group+=(--gres=none)
        fi
        each=${cpus[k]:-$(of SLURM_CPUS_PER_TASK "$g")}
        # --mem=0: the groups share the job's memory; otherwise the first one would get all of it.
        # -N: by default a step requests all nodes of its job.
        group=(srun "${group[@]}" --mpi="${MPI_TYPE:-pmi2}" --kill-on-bad-exit=1 --exact --mem=0 -N "1-$nodes"
            -n "${ranks[k]}" -c "${each:-1}")
        if [[ -n $check ]]; then
            for ((i = 0; i < count; i++)); do start "$k" "${bare[@]}" "${group[@]}" "$farm" --version; done
        else
            words+=(-n "$count" --mpi "${ranks[k]}" --mpi-launch "${group[*]}")
            start "$k" "${bare[@]}" "${own[@]}" "${words[@]}"
            supervisors+=("${steps[-1]}")
        fi
        return
    fi
    [[ -z ${gpus[k]} ]] || words+=(--gpus "${gpus[k]}")
    [[ -z $count ]] || words+=(-n "$count")
    if [[ -n ${cpus[k]} || -z $count${gpus[k]} ]]; then
        each=${cpus[k]:-$(of SLURM_CPUS_PER_TASK "$g")}
        words+=(--cpus "${each:-1}")
    fi
    [[ -z $check ]] || words=("$farm" --version)
    # One task per node supervises the node's workers. --mem=0: all of the job's memory there. The step
    # shares the job's CPUs with the command, and a failed node does not end it.
    group+=(--overlap --ntasks-per-node=1 --mem=0 --kill-on-bad-exit=0 --no-kill --wait=0)
    own+=(srun "${group[@]}")
    if [[ -z ${gpus[k]} ]] || ((!total || ${#with[@]} == 1)); then
        [[ -z ${gpus[k]} ]] || ((!total)) || own+=(--gres="gpu:${!with[*]}")
        start "$k" "${bare[@]}" "${own[@]}" --nodes="$nodes" --ntasks="$nodes" "${words[@]}"
        return
    fi
    # A step has as many GPUs on one of its nodes as on another.
    for n in "${!with[@]}"; do
        for node in $( ((!n)) || scontrol show hostnames "${with[n]}"); do
            start "$k" "${bare[@]}" "${own[@]}" --nodes=1 --ntasks=1 --nodelist="$node" --gpus="$n" "${words[@]}"
        done
    done
}
start() { "${@:2}" & steps+=($!) kind_of_step+=("$1"); }
start_all_workers() {
    local i k g
    for i in "${!places[@]}"; do
        read -r k g <<<"${places[i]}"
        start_workers "$k" "$g" "${counts[i]}"
    done
}

if [[ -n $check ]]; then
    connection='' # of no farm
    start_all_workers >/dev/null
    wait_all "${FARM_PROBE_S:-60}" "${steps[@]}" || say "the steps that are to start in this job do not start"
    for step in "${steps[@]}"; do
        kill "$step" 2>/dev/null
        wait "$step" || status=1
    done
    ((!status)) || die "not all steps of the workers can start in this job; srun's own message is above"
    say "all steps of the workers can start in this job"
    exit
fi

# ---- the farm --------------------------------------------------------------------------------------------------------

connection=$connect
if [[ -z $connect ]]; then
    dir=${dir:-farm-$SLURM_JOB_ID}
    # A front door that crashes is started again, by a small process that is `serving`.
    words=(serve --supervise --workers 0)
    [[ -z $dask ]] || words=(serve --supervise "${models[@]}" --dask "$dask")
    # A farm that was here before, as before a requeue of the job, may have left its file.
    before=$(cat "$dir/farm.json" 2>/dev/null)
    "$farm" "${words[@]}" --host 0.0.0.0 --port 0 --dir "$dir" --grace $((warning * 3 / 5)) &
    serving=$!
fi

# With --no-kill SLURM keeps a job that loses its first node, and with it this script, until the time limit. A step on
# one or two other nodes then requeues the job, or cancels it if it must not be requeued.
# shellcheck disable=SC2016  # the step expands it
watch='
    echo watching && exec >/dev/null
    while sleep "${FARM_WATCH_S:-60}"; do
        shown=$(timeout 30 scontrol -o show job "$SLURM_JOB_ID" | head -n 1)
        [[ $shown =~ \ JobState=RUNNING\  && $shown =~ \ Requeue=([01])\ .*\ NodeList=([^\ ]+) ]] || continue
        requeue=${BASH_REMATCH[1]}
        nodes=$(scontrol show hostnames "${BASH_REMATCH[2]}") && [[ -n $nodes ]] || continue
        ! grep -qxF "$1" <<<"$nodes" || continue
        if ((requeue)); then scontrol requeue "$SLURM_JOB_ID"; else scancel "$SLURM_JOB_ID"; fi
    done'
nodes=$(of SLURM_JOB_NUM_NODES 0)
if ((nodes > 1)); then
    others=$((nodes > 2 ? 2 : 1)) group=()
    ((components == 1)) || group=(--het-group=0)
    exec {from_watch}< <(
        exec "${bare[@]}" srun "${group[@]}" --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 \
            --exclude="$SLURMD_NODENAME" --mem=0 --gres=none --kill-on-bad-exit=0 --no-kill --wait=0 \
            bash -c "$watch" farm.sh "$SLURMD_NODENAME" 2>/dev/null
    )
    watching=$!
fi

if [[ -z $connect ]]; then
    field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$dir/farm.json" 2>/dev/null; }
    until [[ $(cat "$dir/farm.json" 2>/dev/null) != "$before" ]] && url=$(field url) && [[ -n $url ]]; do
        alive "$serving" || { wait "$serving"; status=$?; serving=''; finish; }
        watch_limit
        wait_any 0.1 "$serving"
    done
    port=${url##*:}
    FARM_CONNECTION=$(realpath "$dir")/farm.json
    FARM_URL="http://farm:$(field token)@$(hostname):$port"
    export FARM_CONNECTION FARM_URL
    connection=$FARM_CONNECTION
fi

# The watch must run before the job can lose anything. Where its step does not start, the farm goes on without it.
if [[ -n $watching ]]; then
    for ((i = 0; i < others; i++)); do read -r -t 60 <&"$from_watch" || break; done
    exec {from_watch}<&-
fi

start_all_workers

# Whether a kind has lost all of its workers. If so, `lost` is its name and `status` that of its step.
has_lost_a_kind() {
    local k i some
    for i in "${!steps[@]}"; do
        [[ -z ${ended[i]:-} ]] || continue
        ! alive "${steps[i]}" || continue
        wait "${steps[i]}"
        ended[i]=$?
    done
    for ((k = 0; k < kinds && ${#steps[@]}; k++)); do
        some='' lost=$(models_of "$k" | paste -sd ' ')
        for i in "${!steps[@]}"; do
            ((kind_of_step[i] == k)) || continue
            if [[ -n ${ended[i]:-} ]]; then status=${ended[i]}; else some=yes; fi
        done
        [[ -n $some ]] || { early=yes; return 0; }
    done
    status=0
    return 1
}

if [[ -n $connect ]]; then
    until has_lost_a_kind; do
        watch_limit
        wait_any "$pause" "${steps[@]}"
    done
    finish
fi

# A client that calls a model before any worker has it gets ModelNotFound.
ready() {
    local state k
    state=$("$farm" status --json --to "$dir" 2>/dev/null) || return 1
    if ((kinds == 1)); then [[ $state == *'"slots"'* ]] && return 0 || return 1; fi
    for ((k = 1; k <= kinds; k++)); do [[ $state =~ \"kind\":\ *\"$k\" ]] || return 1; done
}
until ready; do
    alive "$serving" || { wait "$serving"; status=$?; serving=''; ((status)) || status=1; finish; }
    ! has_lost_a_kind || { ((status)) || status=1; finish; }
    watch_limit
    wait_any 0.2 "$serving"
done

# Others can often read the job's output file, so it names the command that prints the token instead of the token.
shown="the address that is printed by: $farm url $(realpath "$dir")"
[[ ! -t 1 ]] || shown=$FARM_URL
cat <<TXT
front door on $(hostname), port $port; connection file $FARM_CONNECTION
from a machine that reaches this node:  $shown
from your own, by ssh:  ssh -N -L 4242:$(hostname):$port ${SLURM_SUBMIT_HOST:-LOGIN-NODE}
                        and then the same with 127.0.0.1:4242 for the host
TXT

if ((${#command[@]})); then
    set -m # the command and what it starts are a process group, which gets the signals
    "${command[@]}" </dev/null &
    running=$!
    set +m
fi
# Without workers or a front door the command would wait for ever.
while true; do
    if [[ -n $running ]] && ! alive "$running"; then
        wait "$running"
        status=$?
        running=''
        finish
    fi
    if ! alive "$serving"; then
        wait "$serving"
        status=$?
        serving=''
        [[ -z $running ]] || { say "the front door ended before the command"; end 1; }
        finish
    fi
    if has_lost_a_kind; then
        [[ -z $running ]] || { say "the workers of $lost ended before the command"; end 1; }
        finish
    fi
    watch_limit
    wait_any "$pause" "$serving" $running "${steps[@]}"
done
