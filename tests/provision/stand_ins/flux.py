"""A Flux of one command; what it prints was recorded from flux-core 0.88.0.

As there, jobs inherit the variables of `flux submit`, the job is the submitted command itself, and
a signal reaches all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.provision.stand_ins.site import Site, answer_of
from tests.provision.stand_ins.site import install as install_commands

DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def install(folder: Path) -> Path:
    """Put the command into a folder; return it."""
    return install_commands(folder, "tests.provision.stand_ins.flux", ("flux",))


def id_of(number: int) -> str:
    """Return a job's id."""
    return "\u0192bC" + DIGITS[number]


def number_of(job_id: str) -> int:
    """Return the number of the job with this id; -1 if it can be no job's."""
    return DIGITS.find(job_id[3:]) if job_id[1:3] == "bC" else -1


def main(program: Path, words: list[str]) -> int:
    """Run one command; return its exit code."""
    if words == ["resource", "list"]:  # which farm does not read
        print(
            "     STATE NNODES   NCORES    NGPUS NODELIST\n      free      1        4        0 here"
        )
        return 0
    for known in ("flux submit", "flux jobs", "flux cancel", "flux job kill"):
        if " ".join(["flux", *words]).startswith(known):
            site = answer_of(program.with_name(known.replace(" ", "-")))
            words = words[len(known.split()) - 1 :]
            break
    else:
        return complain(f"flux: unknown command {words}")
    if known == "flux submit":
        return submit(site, words)
    if known == "flux jobs":
        return jobs(site, words)
    name = known.replace(" ", "-")
    which, which_signal = words, 0
    if known == "flux job kill":
        assert words[0] == "--signal=TERM"
        which, which_signal = words[1:], signal.SIGTERM
    code = 0
    for job_id in which:
        number = number_of(job_id)
        if not site.has(number):
            code = complain(f"{name}: {job_id}: unknown job id")
        elif site.job(number)["state"] == "ended":
            code = complain(f"{name}: {job_id}: job is inactive")
        elif not which_signal:
            site.cancel(number)
        elif site.job(number)["state"] == "pending":
            code = complain(f"{name}: {job_id}: job is not running")
        else:
            site.signal(number, which_signal)
    return code


def complain(text: str) -> int:
    """Print a message; return the exit code that goes with it."""
    print(text, file=sys.stderr)
    return 1


def submit(site: Site, words: list[str]) -> int:
    """Submit the command after `--`."""
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    parser = argparse.ArgumentParser("flux submit")
    for name in ("job-name", "output", "cwd", "time-limit", "nodes", "ntasks", "cores-per-task"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--queue")
    given = parser.parse_args(options)
    if given.queue:
        return complain(f"[Errno 22] '{given.queue}' is not a valid queue")
    number = len(site.jobs()) + 1
    job_id = id_of(number)
    output = given.output.replace("{{id.f58plain}}", "f" + job_id[1:])
    shell = ["bash", "-c", 'exec >> "$0" 2>&1; cd "$1"; shift; exec "$@"', output, given.cwd]
    environment = {**os.environ, "FLUX_JOB_ID": job_id}
    site.submit(given.job_name, [*shell, *command], environment)
    print(job_id)
    return 0


def jobs(site: Site, words: list[str]) -> int:
    """Print jobs in JSON."""
    assert words[0] == "--json"
    if words[1] != "-c":
        (job_id,) = words[1:]
        number = number_of(job_id)
        if not site.has(number):
            return complain(f"JobID {job_id} unknown")
        print(json.dumps(described(site, number)))
        return 0
    assert words[1:6] == ["-c", "0", "-u", str(os.getuid()), "-a"]
    found = [described(site, number) for number in site.jobs()]
    (which,) = words[6:]
    if which.startswith("--name="):
        found = [job for job in found if job["name"] == which.removeprefix("--name=")]
    print(json.dumps({"jobs": found}))
    return 0


def described(site: Site, number: int) -> dict[str, Any]:
    """Return one job as `flux jobs` does."""
    job = site.job(number)
    state = {"pending": "SCHED", "running": "RUN", "ended": "INACTIVE"}[job["state"]]
    status = state
    exception: dict[str, Any] = {"occurred": False}
    if state == "INACTIVE":
        status = "FAILED" if job["code"] else "COMPLETED"
        if job["deleted"]:
            status = "CANCELED"
            exception = {"occurred": True, "severity": 0, "type": "cancel", "note": ""}
    found = {"jobid": id_of(number), "name": job["name"], "state": state, "status": status}
    found |= {"userid": os.getuid(), "urgency": 16, "dependencies": [], "annotations": {}}
    found |= {"exception": exception}
    if state != "SCHED":
        found |= {"nodelist": "here", "returncode": job["code"]}
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
