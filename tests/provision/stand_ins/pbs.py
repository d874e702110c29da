"""A PBS server of four commands; what they print was recorded from OpenPBS 23.06.06.

As there, the job's script is a child of a login shell, the job ends when that shell does, and jobs
inherit no variables of qsub. Beside a file `no-history` the server forgets jobs that have ended.
"""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.provision.stand_ins.site import Site, answer_of, directives
from tests.provision.stand_ins.site import install as install_commands

HOST = "standin"

QUEUES = """\
Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type
---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----
workq                0     0 yes yes     0     0     0     0     0     0 Exec"""
"""What `qstat -Q` prints, for people alone: it is not recorded, and farm does not read it."""


def install(folder: Path) -> Path:
    """Put the commands into a folder; return it."""
    names = ("qsub", "qstat", "qselect", "qdel")
    return install_commands(folder, "tests.provision.stand_ins.pbs", names)


def main(program: Path, words: list[str]) -> int:
    """Run one command; return its exit code."""
    site = answer_of(program)
    user = pwd.getpwuid(os.getuid()).pw_name
    if program.name == "qsub":
        assert words == ["-f"]
        return qsub(site, sys.stdin.read())
    if program.name == "qselect":
        name = words[words.index("-N") + 1] if "-N" in words else None
        assert words[:2] == ["-u", user]
        for number, job in site.jobs().items():
            if job["state"] != "ended" and name in (None, job["name"]):
                print(f"{number}.{HOST}")
        return 0
    if program.name == "qstat" and words == ["-B", "-f", "-F", "dsv", "-D", "|"]:
        print(f"Server: {HOST}|server_state=Active|scheduling=True")
        return 0
    if program.name == "qstat" and words == ["-Q"]:
        print(QUEUES)
        return 0
    if program.name == "qstat":
        assert words[:5] == ["-f", "-F", "dsv", "-D", "|"]
        with_ended, ids = words[5:6] == ["-x"], [word for word in words[5:] if word != "-x"]
        keeps_history = not (site.folder / "no-history").exists()
        if with_ended and not keeps_history:
            print("qstat: PBS is not configured to maintain job history", file=sys.stderr)
            return 0
        return each(
            site,
            "qstat",
            ids,
            lambda number: print(line(site, number, user)),
            alive=not with_ended,
            forgets=not keeps_history,
        )
    forgets = (site.folder / "no-history").exists()
    return each(site, "qdel", words, lambda n: site.cancel(n), alive=True, forgets=forgets)


def qsub(site: Site, script: str) -> int:
    """Submit the script on stdin."""
    options: dict[str, str] = {}
    for text in directives(script, "#PBS "):
        name, _, value = text.partition(" ")
        if name not in ("-N", "-S", "-j", "-o", "-r", "-q", "-A", "-l"):
            print(f"qsub: directive error: {text} ", file=sys.stderr)
            return 1
        options[name] = value
    if options.get("-q", "workq") != "workq":
        print("qsub: Unknown queue", file=sys.stderr)
        return 170
    path = site.folder / f"script-{len(site.jobs()) + 1}"
    path.write_text(script)
    number = len(site.jobs()) + 1
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    environment = {**kept, "PBS_JOBID": f"{number}.{HOST}", "PBS_ENVIRONMENT": "PBS_BATCH"}
    login_shell = ["bash", "-c", f"{options['-S']} {shlex.quote(str(path))}; exit $?"]
    site.submit(options["-N"], login_shell, environment)
    print(f"{number}.{HOST}")
    return 0


def line(site: Site, number: int, user: str) -> str:
    """Return one job as `qstat -f -F dsv` does."""
    job = site.job(number)
    letter = {"pending": "Q", "running": "R", "ended": "F"}[job["state"]]
    fields: dict[str, Any] = {"Job_Name": job["name"], "Job_Owner": f"{user}@{HOST}"}
    fields |= {"job_state": letter, "queue": "workq", "Variable_List": r"A=x\|y,B=z"}
    comment = f"Job run on ({HOST}:ncpus=1)"
    if letter == "Q":
        comment = "Not Running: Not enough free nodes available"
    if letter == "F":
        code = job["code"] if job["code"] >= 0 else 256 - job["code"]
        substate, word = (91, "terminated") if job["deleted"] else (92, "finished")
        if code and not job["deleted"]:
            substate, word = 93, "failed"
        fields |= {"substate": substate, "Exit_status": code}
        comment += f" and {word}"
    fields["comment"] = comment
    return "|".join([f"Job Id: {number}.{HOST}", *(f"{k}={v}" for k, v in fields.items())])


def each(
    site: Site, name: str, ids: list[str], do: Any, *, alive: bool = False, forgets: bool = False
) -> int:
    """Apply a function to jobs, and complain about those for which that cannot be done.

    alive: it cannot be done for ended jobs; forgets: the server no longer knows those.
    """
    code = 0
    for job_id in ids:
        number = int(job_id.partition(".")[0])
        if not site.has(number) or (forgets and site.job(number)["state"] == "ended"):
            print(f"{name}: Unknown Job Id {job_id}", file=sys.stderr)
            code = 153
        elif alive and site.job(number)["state"] == "ended":
            print(f"{name}: Job has finished {job_id}", file=sys.stderr)
            code = 35
        else:
            do(number)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
