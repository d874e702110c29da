#!/usr/bin/env bash
#SBATCH --job-name=farm-mpi
#SBATCH --output=farm-mpi-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
# Groups of MPI ranks in one SLURM job, for a running farm.
#
#   sbatch [SBATCH OPTIONS] launchers/mpi.sh --mpi RANKS [OPTIONS] MODEL...
#
#   sbatch -n 64 launchers/mpi.sh --mpi 4 --connect /shared/run7 solver.py
#
# The job's tasks form as many groups as fit. Each group is a step of its own, so a group that dies is replaced
# without affecting the others. The options are those of `farm worker`.
#
#   MPI_TYPE=pmix      the value of srun's --mpi: pmi2 for MPICH and Intel MPI [pmi2], pmix for Open MPI
#   FARM=/path/to/farm the program, if it is not on the PATH of the sbatch call
set -euo pipefail

die() { printf 'mpi.sh: %s\n' "$*" >&2; exit 2; }

ranks=''
for ((i = 1; i <= $#; i++)); do
    case ${!i} in
        --mpi) next=$((i + 1)); ranks=${!next-} ;;
        --mpi=*) ranks=${!i#--mpi=} ;;
    esac
done
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "say how many ranks a group has: --mpi RANKS"
[[ -n ${SLURM_JOB_ID:-} ]] || die "this is no SLURM job; submit it with sbatch, or use: farm worker $*"
tasks=${SLURM_NTASKS:-1}
((tasks >= ranks)) || die "the job has $tasks tasks, a group needs $ranks: sbatch -n $ranks or a multiple of it"
farm=${FARM:-farm}
command -v "$farm" >/dev/null ||
    die "no $farm on the PATH: activate farm's environment before sbatch, or set FARM to the path of the program"

# --mem=0: the groups share the job's memory; otherwise the first one would get all of it.
# -N: by default a step requests all nodes of its job.
exec "$farm" worker "$@" -n $((tasks / ranks)) \
    --mpi-launch "srun --mpi=${MPI_TYPE:-pmi2} --kill-on-bad-exit=1 --exact --mem=0 -N 1-${SLURM_JOB_NUM_NODES:-1} -n {ranks}"
