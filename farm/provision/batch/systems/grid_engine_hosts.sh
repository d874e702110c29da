# shellcheck shell=bash
# Runs a command on each node of a Grid Engine job, and ends with the last one of them.
# qrsh -inherit starts it in the job's own slots; it passes neither folder nor environment on.
trap : USR1 USR2 TERM
processes=()
while read -r host _; do
    # shellcheck disable=SC2016
    words=(env "FARM_KIND=$FARM_KIND" "FARM_JOB=$FARM_JOB" "FARM_JOB_RESTART=$FARM_JOB_RESTART"
        sh -c 'cd "$0" && exec "$@"' "$PWD" "$@")
    qrsh -inherit -nostdin "$host" "$(printf '%q ' "${words[@]}")" </dev/null &
    processes+=($!)
done <"$PE_HOSTFILE"
status=0
for process in "${processes[@]}"; do
    while kill -0 "$process" 2>/dev/null; do wait "$process"; done  # a signal interrupts wait
    wait "$process" || status=$?
done
exit "$status"
