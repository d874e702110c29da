"""The variables by which each batch system tells a process its job."""

from __future__ import annotations

JOBS = {
    "slurm": ({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "4102444800"}, "7"),
    "pbs": ({"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_BATCH"}, "7.server"),
    "lsf": ({"LSB_JOBID": "7", "LSB_BATCH_JID": "7"}, "7"),
    "flux": ({"FLUX_JOB_ID": "\u0192bC7", "FLUX_JOB_SIZE": "1"}, "\u0192bC7"),
    "grid-engine": ({"JOB_ID": "7", "SGE_TASK_ID": "undefined", "ENVIRONMENT": "BATCH"}, "7"),
}
"""By the name of the system: variables of a job, and the job's id.

Sources: the documents that the modules of the systems name.
"""
