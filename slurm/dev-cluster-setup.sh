# shellcheck shell=bash disable=SC2154
# Part of dev-cluster, which sources it: what a cluster needs before its first daemon starts.

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 --no-install-recommends \
        "$@" </dev/null >>"$STATE/log/apt.log" 2>&1
}

install_packages() {
    local missing=() pair policy=/usr/sbin/policy-rc.d
    for pair in slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge ip:iproute2; do
        command -v "${pair%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || cannot "not installed, and there is no apt-get: ${missing[*]}"
    [ "$(id -u)" = 0 ] || cannot "not installed: apt-get install ${missing[*]}, as root"
    say "installing ${missing[*]}"
    # The packages' own services must not start; a machine's existing policy stays.
    if [ ! -e $policy ]; then
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
    fi
    apt_get install "${missing[@]}" || { apt_get update; apt_get install "${missing[@]}"; } ||
        cannot "apt-get could not install ${missing[*]}: see $STATE/log/apt.log"
}

write_slurm_conf() {
    local name control=login host option
    [ -n "$SPACES" ] || control=$(hostname -s)
    cat >"$SLURM_CONF" <<CONF
ClusterName=dev
SlurmctldHost=$control($(address login))
SlurmctldPort=$PORT
# Daemons listen at the address of their host name, not at every one.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
# A requeued job waits cred_expire seconds before it may start again (SLURM: 120).
AuthType=auth/munge
AuthInfo=socket=$STATE/munge/socket,cred_expire=5
StateSaveLocation=$STATE/control
SlurmctldPidFile=$STATE/run/slurmctld.pid
SlurmctldLogFile=$STATE/log/slurmctld.log
SlurmdSpoolDir=$STATE/spool/%n
# PMIx has a folder of each step there, which nodes that share /tmp would share.
TmpFS=$STATE/tmp/%n
SlurmdPidFile=$STATE/run/slurmd-%n.pid
SlurmdLogFile=$STATE/log/slurmd-%n.log
# No cgroups, no CPU binding; CPUs and memory are what this file says.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
# No database, so no sacct; a finished job stays in \`scontrol show job\` for MinJobAge seconds.
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$STATE/log/jobcomp.log
MinJobAge=600
# Ids of jobs that no other cluster uses, before or beside: MPI names shared memory after the job and its step.
FirstJobId=$((($(date +%s) + PORT) % 60000 * 1000 + 1))
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=256
GresTypes=gpu
SchedulerType=sched/backfill
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
# Shorter than SLURM's own (3 and 60, 30, 300, 10), so that tests are quick.
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
KillWait=5
SlurmdTimeout=20
BatchStartTimeout=10
MessageTimeout=10
CONF
    write_job_submit && echo "JobSubmitPlugins=lua" >>"$SLURM_CONF"
    for option in $OPTIONS; do
        [[ $option == [A-Z]*=?* ]] || misused "DEV_CLUSTER_OPTIONS has '$option', expected KEY=VALUE"
        sed -i "/^${option%%=*}=/d" "$SLURM_CONF"
        echo "$option" >>"$SLURM_CONF"
    done
    for name in "${NODES[@]}"; do
        host=$name
        [ -n "$SPACES" ] || host=$(hostname -s)
        echo "NodeName=$name NodeHostname=$host NodeAddr=$(address "$name")" \
            "Port=$((PORT + $(number "$name"))) CPUs=4 RealMemory=8000 Feature=${name%[0-9]}" \
            "$([[ $name != gpu* ]] || echo "Gres=gpu:toy:$GPUS")"
    done >>"$SLURM_CONF"
    cat >>"$SLURM_CONF" <<CONF
PartitionName=DEFAULT MaxTime=1-0 DefaultTime=30 PriorityTier=10
PartitionName=cpu Nodes=cpu[1-4] Default=YES
PartitionName=gpu Nodes=gpu[1-2]
PartitionName=short Nodes=cpu[1-4] MaxTime=1 DefaultTime=1
PartitionName=scavenge Nodes=cpu[1-4],gpu[1-2] PriorityTier=1 GraceTime=5
CONF
}

write_job_submit() { # where SLURM has the plugin: an account that is refused, as unknown ones are by a database
    compgen -G '/usr/lib*/slurm*/job_submit_lua.so' || compgen -G '/usr/lib/*/slurm*/job_submit_lua.so' || return
    cat >"$STATE/job_submit.lua" <<'LUA'
function slurm_job_submit(job, partitions, user)
    return job.account == "closed" and slurm.ESLURM_INVALID_ACCOUNT or slurm.SUCCESS
end
function slurm_job_modify(job, before, partitions, user)
    return slurm.SUCCESS
end
return slurm.SUCCESS
LUA
} >/dev/null

write_gres_conf() { # to SLURM a GPU is any character device: twins of /dev/null, or what there is
    local i device there=(/dev/null /dev/zero)
    for ((i = 0; i < GPUS; i++)); do
        device=$STATE/gpu/nvidia$i
        [ -c "$device" ] || mknod -m 666 "$device" c 1 3 2>/dev/null || device=${there[$i]}
        echo "NodeName=gpu[1-2] Name=gpu Type=toy AutoDetect=off Flags=nvidia_gpu_env File=$device"
    done >"$STATE/gres.conf"
}
