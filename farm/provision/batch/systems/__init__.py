"""The batch systems that farm knows: one object with the facts of each.

BUILT_IN has those that come with farm; another package adds its own by an entry point in the group
`farm.batch_systems`:

    [project.entry-points."farm.batch_systems"]
    odd = "farm_odd:SYSTEM"

The adapters, which run the commands, are modules of their own: a worker needs the facts only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from farm.descriptors import of_packages, resolve
from farm.errors import Unavailable

if TYPE_CHECKING:
    from farm.provision.batch.system import Adapter

GROUP = "farm.batch_systems"
"""The group of entry points in which other packages register their systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVariables:
    """The environment variables in which a batch system describes a job to its processes.

    id: the job's id. marker: set in every job; needed where other programs set `id`, too. process:
    the number of a process of the job. task: that of a part of a job array, with `no_task` in other
    jobs. cluster: the name of the cluster. restart: set, and not "0", in a job that was started
    before; empty if the system does not tell it.
    """

    id: str
    marker: str = ""
    process: str = ""
    task: str = ""
    no_task: str = ""
    cluster: str = ""
    restart: str = ""

    def describe(self, environment: Mapping[str, str]) -> bool:
        """Whether these are the variables of a job."""
        return bool(environment.get(self.id) and environment.get(self.marker or self.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of one batch system that farm accepts in place of its own, and those it lacks.

    keys: for keys of a kind of workers, with farm's keys. template: for words between @ signs in a
    template, with farm's words; the value omits a program of the same name that it begins with.
    status: the name under which the status has the jobs a second time; empty if it has not.
    lacks: the keys of a kind of workers for which the system has no words.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    template: Mapping[str, str] = field(default_factory=dict)
    status: str = ""
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSystem:
    """The facts of a batch system.

    name: in the file of `farm serve --cluster`; title: for people. adapter: names a
    `farm.provision.batch.system.Adapter`, as "package.module:class".
    commands: those without which it cannot be used; where: a hint on where they are. proof: if
    other systems have commands of the same names, a command line and the form of its output here.
    own_jobs: the command by which users list their jobs.
    job: its variables. leaks: forms of names that change its commands or leak from the job around
    farm into others, and keeps: the names among them that must stay.
    words: its words for keys and templates, accepted only where the jobs are in this system.
    starts_ranks: whether `Adapter.launch` starts the MPI ranks; otherwise farm starts them by
    mpiexec. warns: whether it warns jobs before their time limit, and workers can ask it for the
    end; otherwise the script counts the time.
    """

    name: str
    title: str
    adapter: str
    commands: tuple[str, ...]
    where: str = ""
    proof: tuple[str, str] | None = None
    own_jobs: str
    job: JobVariables
    leaks: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    words: Words = Words()
    starts_ranks: bool = False
    warns: bool = False

    def load(self) -> type[Adapter]:
        """Import the adapter."""
        found: type[Adapter] = resolve(self.adapter)
        return found

    def outside_jobs(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for the system's commands: without what `leaks`, or is farm's."""
        leaks = ("FARM_*", *self.leaks)
        return {
            name: value
            for name, value in environment.items()
            if name in self.keeps or not any(fnmatchcase(name, form) for form in leaks)
        }


SLURM = BatchSystem(
    name="slurm",
    title="SLURM",
    adapter="farm.provision.batch.systems.slurm:Slurm",
    commands=("sbatch", "squeue", "scancel", "scontrol"),
    own_jobs="squeue --me",
    job=JobVariables(
        id="SLURM_JOB_ID",
        process="SLURM_PROCID",
        cluster="SLURM_CLUSTER_NAME",
        restart="SLURM_RESTART_COUNT",
    ),
    leaks=("SLURM_*", "SLURMD_*", "SRUN_*", "SQUEUE_*", "SCANCEL_*", "PMI_*", "PMIX_*"),
    keeps=("SLURM_CONF", "SLURM_CLUSTERS"),
    words=Words(
        keys={"partition": "queue", "sbatch": "options"},
        template={"sbatch": "directives", "srun": "launch"},
        status="slurm",
        lacks=frozenset({"mpi_launch"}),
    ),
    starts_ranks=True,
    warns=True,
)

PBS = BatchSystem(
    name="pbs",
    title="PBS",
    adapter="farm.provision.batch.systems.pbs:Pbs",
    commands=("qsub", "qstat", "qselect", "qdel"),
    proof=("qstat --version", r"(?i)\bpbs_version\b"),  # qstat(1B) of PBS Pro
    own_jobs="qstat -u $USER",
    # `run_count` is an attribute and not a variable, see pbs_job_attributes(7B).
    job=JobVariables(id="PBS_JOBID"),
    leaks=("PBS_*", "PMI_*", "PMIX_*"),
    keeps=("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_PRIMARY", "PBS_SERVER"),
    words=Words(lacks=frozenset({"qos", "constraint", "srun"})),
)

LSF = BatchSystem(
    name="lsf",
    title="LSF",
    adapter="farm.provision.batch.systems.lsf:Lsf",
    commands=("bsub", "bjobs", "bkill"),
    own_jobs="bjobs",
    # LSF Configuration Reference, "Environment variables": LSB_RESTART=Y after the failure of a
    # host, a migration or a checkpoint, otherwise not set.
    job=JobVariables(id="LSB_JOBID", task="LSB_JOBINDEX", no_task="0", restart="LSB_RESTART"),
    # Jobs get all of the environment. BSUB_QUIET would have bsub tell no job id.
    leaks=("LSB_*", "LS_*", "BSUB_*", "PMI_*", "PMIX_*", "OMPI_*"),
    keeps=("LSB_DEFAULTQUEUE", "LSB_DEFAULTPROJECT", "LSB_DEFAULTJOBGROUP"),
    words=Words(lacks=frozenset({"mem", "qos", "constraint", "srun"})),
)

FLUX = BatchSystem(
    name="flux",
    title="Flux",
    adapter="farm.provision.batch.systems.flux:Flux",
    commands=("flux",),
    own_jobs="flux jobs",
    job=JobVariables(id="FLUX_JOB_ID"),  # flux-environment(7) has no variable about restarts
    # Jobs get all of the environment, also that of the system that started Flux. FLUX_URI and the
    # paths name the instance whose commands these are.
    leaks=(
        *("FLUX_JOB*", "FLUX_TASK_*", "FLUX_ENCLOSING_ID*", "FLUX_KVS_NAMESPACE*", "FLUX_PMI_*"),
        *("FLUX_TERMINUS_SESSION*", "SLURM_*", "PBS_*", "LSB_*", "PMI_*", "PMIX_*", "OMPI_*"),
    ),
    words=Words(lacks=frozenset({"mem", "qos", "constraint", "srun", "mpi_launch"})),
    starts_ranks=True,
)

GRID_ENGINE = BatchSystem(
    name="grid-engine",
    title="Grid Engine",
    adapter="farm.provision.batch.systems.grid_engine:GridEngine",
    commands=("qsub", "qstat", "qdel"),
    where="; often $SGE_ROOT/default/common/settings.sh puts them there",
    # A line with the version, such as `SGE 8.1.9`, and then the usage.
    proof=("qstat -help", r"(?m)^usage: qstat \[options\]|\bGrid Engine\b|^\w*GE \d"),
    own_jobs="qstat",
    # qsub(1), ENVIRONMENTAL VARIABLES. Other programs set JOB_ID, too.
    job=JobVariables(
        id="JOB_ID",
        marker="SGE_TASK_ID",
        task="SGE_TASK_ID",
        no_task="undefined",
        cluster="SGE_CELL",
        restart="RESTARTED",
    ),
    leaks=(
        *("SGE_*", "ARC", "ENVIRONMENT", "JOB_ID", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES"),
        *("NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQNAME", "REQUEST", "RESTARTED"),
    ),
    # They say where the cluster is.
    keeps=tuple(
        f"SGE_{name}"
        for name in ("ARCH", "CELL", "CLUSTER_NAME", "EXECD_PORT", "QMASTER_PORT", "ROOT")
    ),
    words=Words(lacks=frozenset({"constraint", "mem", "qos", "srun"})),
)

BUILT_IN = (SLURM, PBS, LSF, FLUX, GRID_ENGINE)
"""The systems that come with farm."""


@lru_cache(maxsize=1)
def installed() -> tuple[BatchSystem, ...]:
    """Return the systems of other packages. Raises Unavailable if one cannot be used."""
    return tuple(_installed())


def _installed() -> Iterator[BatchSystem]:
    names = {system.name for system in BUILT_IN}
    for system, shown in of_packages(GROUP, BatchSystem, "batch system"):
        if system.name in names:
            taken = f"the name {system.name!r}, which another batch system already has"
            raise Unavailable(f"{shown} has {taken}")
        names.add(system.name)
        yield system


def every() -> tuple[BatchSystem, ...]:
    """Return all systems, built-in ones first. Raises Unavailable as `installed` does."""
    return BUILT_IN + installed()


def usable() -> tuple[BatchSystem, ...]:
    """Return all systems; the built-in ones alone if a package cannot be used."""
    try:
        return every()
    except Unavailable:
        return BUILT_IN


def named(name: str) -> BatchSystem | None:
    """Return the system of this name, or None. Raises Unavailable as `installed` does."""
    known = {system.name: system for system in BUILT_IN}
    return known.get(name) or next((s for s in installed() if s.name == name), None)


def of_this_job(
    environment: Mapping[str, str] = os.environ, systems: Iterable[BatchSystem] = BUILT_IN
) -> BatchSystem | None:
    """Return the one of the systems whose job this process is in; None outside a job."""
    return next((system for system in systems if system.job.describe(environment)), None)
