"""What the tests know of each batch system: one object, whose key is the name of the system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.provision.stand_ins import flux, lsf, pbs


@dataclass(frozen=True)
class StandIn:
    """The stand-in of a batch system, whose commands `install` puts into a new folder.

    submit, list: its commands that submit a job and list jobs; others: all other commands that farm
    calls. refusal: the answer to a job for the queue `nosuch`. unknown: an id that no job has.
    """

    install: Callable[[Path], Path]
    submit: str
    list: str
    others: tuple[str, ...]
    refusal: str
    unknown: str


@dataclass(frozen=True)
class Known:
    """Facts about a system: variables of a job and its id, as the system's own documents say.

    keeps, drops: more variables that reach its commands, and that do not. launcher: the program
    that starts a worker on each node, where farm starts the ranks. stand_in: for systems that no
    folder of tests runs for real.
    """

    variables: dict[str, str]
    id: str
    keeps: tuple[str, ...]
    drops: tuple[str, ...]
    launcher: str = ""
    stand_in: StandIn | None = None


JOBS = {
    "slurm": Known(
        {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "4102444800"},
        "7",
        keeps=("SLURM_CONF", "SBATCH_ACCOUNT"),
        drops=("SLURM_MEM_PER_CPU", "SQUEUE_STATES", "PMI_RANK"),
    ),
    "pbs": Known(
        {"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_BATCH"},
        "7.server",
        keeps=("PBS_CONF_FILE",),
        drops=("PBS_DPREFIX", "PMI_RANK"),
        launcher="pbsdsh",
        stand_in=StandIn(
            pbs.install,
            "qsub",
            "qselect",
            ("qstat", "qdel"),
            "qsub: Unknown queue",
            f"99.{pbs.HOST}",
        ),
    ),
    "lsf": Known(
        {"LSB_JOBID": "7", "LSB_BATCH_JID": "7"},
        "7",
        keeps=("LSF_ENVDIR", "LSB_DEFAULTQUEUE"),
        drops=("LSB_BJOBS_FORMAT", "BSUB_QUIET", "PMI_RANK"),
        launcher="blaunch",
        stand_in=StandIn(
            lsf.install,
            "bsub",
            "bjobs",
            ("bkill",),
            "nosuch: No such queue. Job not submitted.",
            "99",
        ),
    ),
    "flux": Known(
        {"FLUX_JOB_ID": "\u0192bC7", "FLUX_JOB_SIZE": "1"},
        "\u0192bC7",
        keeps=("FLUX_URI",),
        drops=("FLUX_ENCLOSING_ID", "SLURM_JOB_ID", "PMI_RANK"),
        stand_in=StandIn(
            flux.install,
            "flux-submit",
            "flux-jobs",
            ("flux-cancel", "flux-job-kill"),
            "[Errno 22] 'nosuch' is not a valid queue",
            "fbD1",
        ),
    ),
    "grid-engine": Known(
        {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "ENVIRONMENT": "BATCH"},
        "7",
        keeps=("SGE_ROOT", "SGE_QMASTER_PORT", "PERL5LIB"),
        drops=("SGE_O_HOST", "PE_HOSTFILE"),
        launcher="bash",
    ),
}

STAND_INS = {name: known.stand_in for name, known in JOBS.items() if known.stand_in is not None}
