#!/usr/bin/env bash
#SBATCH --job-name=farm
#SBATCH --output=farm-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
#SBATCH --no-kill
# A farm in one SLURM job: the front door on its first node, workers on all of its nodes.
#
#   sbatch [SBATCH OPTIONS] launchers/farm.sh [OPTIONS] MODEL... [-- COMMAND...]
#
#   sbatch -N 4 --exclusive launchers/farm.sh model.py
#   sbatch -N 2 -n 8 launchers/farm.sh model.py -- farm sweep --param x=0:1 --design sobol:256 -o s.h5
#   sbatch -N 2 --gpus-per-node=4 launchers/farm.sh --gpus auto surrogate.py
#
# Without a COMMAND the farm serves until the job ends. A COMMAND runs on the first node with FARM_CONNECTION (the
# connection file) and FARM_URL (for any UM-Bridge client) set, and the job ends with its exit status.
#
#   --cpus N           CPUs of one worker; a node gets as many workers as fit [SLURM_CPUS_PER_TASK, or else 1]
#   --workers N        workers on each node instead
#   --gpus auto|0,1    a worker for each GPU of a node instead, or for each of these
#   --time-limit S     kill a model call that runs longer
#   --dir DIR          run folder, which all nodes see [farm-JOBID]
#
# `farm` is looked up on the PATH of the sbatch call; FARM=/path/to/farm selects another program.
set -uo pipefail

usage() { sed -n '/^# A farm in/,/^# .farm. is/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
die() { printf 'farm.sh: %s\n' "$*" >&2; exit 2; }

cpus=${SLURM_CPUS_PER_TASK:-1} count='' gpus='' dir='' time_limit=()
models=() command=()
while (($#)); do
    case $1 in
        --help | -h) usage; exit 0 ;;
        --) shift; command=("$@"); break ;;
        --cpus | --workers | --gpus | --dir | --time-limit)
            (($# > 1)) || die "$1 needs a value"
            case $1 in
                --cpus) cpus=$2 ;;
                --workers) count=$2 ;;
                --gpus) gpus=$2 ;;
                --dir) dir=$2 ;;
                --time-limit) time_limit=(--time-limit "$2") ;;
            esac
            shift 2 ;;
        -*) die "there is no option $1; see launchers/farm.sh --help" ;;
        *) models+=("$1"); shift ;;
    esac
done
((${#models[@]})) || die "which MODEL? See launchers/farm.sh --help"
[[ $cpus =~ ^[1-9][0-9]*$ ]] || die "--cpus is $cpus; expected a number of CPUs"
[[ -z $count || $count =~ ^[1-9][0-9]*$ ]] || die "--workers is $count; expected a number of workers"
[[ -n ${SLURM_JOB_ID:-} ]] || die "this is no SLURM job; submit it with sbatch, or use: farm serve ${models[*]}"
farm=${FARM:-farm}
command -v "$farm" >/dev/null ||
    die "no $farm on the PATH: activate farm's environment before sbatch, or set FARM to the path of the program"
dir=${dir:-farm-$SLURM_JOB_ID}

# A test step before all else: if steps cannot start, they often wait for ever without a message.
timeout --kill-after=5 "${FARM_PROBE_S:-60}" srun --overlap --nodes=1 --ntasks=1 --mem=0 true ||
    die "srun cannot start a step in this job (exit status $?); what it says is above. Does the job have a CPU left?"

serving='' working='' running='' status=0

# shellcheck disable=SC2317  # called by the traps
end() {
    trap '' TERM INT
    [[ -z $running ]] || { kill -TERM "$running" 2>/dev/null; wait "$running"; status=$?; }
    running=''
    finish
}
finish() {
    trap '' TERM INT
    # The front door lets running calls finish and stops the workers, which ends their step.
    [[ -z $serving ]] || { kill -TERM "$serving" 2>/dev/null; wait "$serving"; }
    [[ -z $working ]] || {
        for _ in {1..100}; do kill -0 "$working" 2>/dev/null || break; sleep 0.1; done
        kill -TERM "$working" 2>/dev/null
        wait "$working"
    }
    exit "$status"
}
trap 'status=143; end' TERM
trap 'status=130; end' INT

"$farm" serve --workers 0 --host 0.0.0.0 --port 0 --dir "$dir" &
serving=$!
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$dir/farm.json" 2>/dev/null; }
until url=$(field url) && [[ -n $url ]]; do
    kill -0 "$serving" 2>/dev/null || { wait "$serving"; status=$?; serving=''; finish; }
    sleep 0.1
done
port=${url##*:}
FARM_CONNECTION=$(realpath "$dir")/farm.json
FARM_URL="http://farm:$(field token)@$(hostname):$port"
export FARM_CONNECTION FARM_URL

if [[ -n $gpus ]]; then
    many=(--gpus "$gpus")
    [[ -z $count ]] || many+=(-n "$count")
elif [[ -n $count ]]; then
    many=(-n "$count")
else
    many=(--cpus "$cpus")
fi
# One task per node supervises the node's workers. --mem=0: all of the job's memory there. The step
# shares the job's CPUs with the command, and a failed node does not end it.
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mem=0 \
    --kill-on-bad-exit=0 --no-kill --wait=0 \
    "$farm" worker "${models[@]}" --connect "$FARM_CONNECTION" "${many[@]}" "${time_limit[@]}" &
working=$!

# A client that calls a model before any worker has it gets ModelNotFound.
until "$farm" status --json --to "$dir" 2>/dev/null | grep -q '"slots"'; do
    for part in "$serving" "$working"; do
        kill -0 "$part" 2>/dev/null || { wait "$part"; status=$?; ((status)) || status=1; finish; }
    done
    sleep 0.2
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
    "${command[@]}" &
    running=$!
    # Wait for the first to end: without workers or a front door the command would wait for ever.
    wait -n "$running" "$serving" "$working"
    if kill -0 "$running" 2>/dev/null; then
        echo "farm.sh: the $(kill -0 "$serving" 2>/dev/null && echo workers || echo "front door") ended before the command" >&2
        status=1
        end
    fi
    wait "$running"
    status=$?
    running=''
else
    wait -n "$serving" "$working"
    status=$?
fi
finish
