"""An LSF of three commands, after IBM's manual pages and answers recorded by other projects.

Sources: bsub, bjobs, bkill in the command reference of Spectrum LSF 10.1; the JSON of bjobs from
the documentation of buildtest (an LSF of Summit) and the tests of Roddy's BatchEuphoria; the job
file of LSF has the shell around the script survive SIGTERM (LSB_TRAPSIGS, in OpenLava's sbatchd).
Jobs inherit the variables of bsub.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.provision.stand_ins.site import Site, answer_of, directives
from tests.provision.stand_ins.site import install as install_commands

OPTIONS = ("-J", "-o", "-cwd", "-q", "-P", "-n", "-R", "-gpu", "-W", "-r")


def install(folder: Path) -> Path:
    """Put the commands into a folder; return it."""
    return install_commands(folder, "tests.provision.stand_ins.lsf", ("bsub", "bjobs", "bkill"))


def main(program: Path, words: list[str]) -> int:
    """Run one command; return its exit code."""
    site = answer_of(program)
    user = pwd.getpwuid(os.getuid()).pw_name
    if program.name == "bsub":
        return bsub(site, sys.stdin.read())
    if program.name == "bjobs":
        return bjobs(site, words, user)
    which: list[int]
    name = ""
    while words and words[0].startswith("-"):
        option, value, *words = words
        if option == "-J":
            name = value
        else:
            assert (option, value) == ("-u", user)
    live = {number: job for number, job in site.jobs().items() if job["state"] != "ended"}
    if words == ["0"]:
        which = [number for number, job in live.items() if job["name"] == name]
        if not which:
            print("No matching job found", file=sys.stderr)
            return 255
    else:
        which = [int(word) for word in words]
    code = 0
    for number in which:
        if not site.has(number):
            print(f"Job <{number}>: No matching job found", file=sys.stderr)
            code = 255
        elif number not in live:
            print(f"Job <{number}>: Job has already finished", file=sys.stderr)
            code = 255
        else:
            print(f"Job <{number}> is being terminated")
            site.cancel(number)
    return code


def bsub(site: Site, script: str) -> int:
    """Submit the script on stdin."""
    words = [word for text in directives(script, "#BSUB ") for word in shlex.split(text)]
    options: dict[str, str] = {}
    while words:
        name, *words = words
        if name not in OPTIONS:
            print(f"bsub: illegal option -- {name}. Job not submitted.", file=sys.stderr)
            return 255
        if name != "-r":
            options[name], *words = words
    if options.get("-q", "normal") != "normal":
        print(f"{options['-q']}: No such queue. Job not submitted.", file=sys.stderr)
        return 255
    number = len(site.jobs()) + 1
    path = site.folder / f"script-{number}"
    path.write_text(script)
    job_file = f"trap '#' 15 10 12 2 1; cd {shlex.quote(options['-cwd'])}; bash {path}; exit $?"
    environment = {**os.environ, "LSB_JOBID": str(number), "LSB_TRAPSIGS": "trap # 15 10 12 2 1"}
    site.submit(options["-J"], ["sh", "-c", job_file], environment)
    print(f"Job <{number}> is submitted to default queue <normal>.")
    return 0


def bjobs(site: Site, words: list[str], user: str) -> int:
    """Print jobs in JSON."""
    assert words[:3] == ["-a", "-json", "-o"]
    columns, *rest = words[3:]
    if rest[0] == "-u":
        assert rest[1:] == [user]
        records = [record(site, number, user) for number in site.jobs()]
        if not records:
            print("No job found", file=sys.stderr)
            return 255
    else:
        (job_id,) = rest
        records = [{"JOBID": job_id, "ERROR": f"Job <{job_id}> is not found"}]
        if site.has(int(job_id)):
            records = [record(site, int(job_id), user)]
    for row in records:
        assert "ERROR" in row or list(row) == columns.upper().split()
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))
    return 0


def record(site: Site, number: int, user: str) -> dict[str, Any]:
    """Return one job as bjobs does."""
    job = site.job(number)
    stat = {"pending": "PEND", "running": "RUN", "ended": "EXIT" if job["code"] else "DONE"}
    found = {"JOBID": str(number), "STAT": stat[job["state"]], "JOB_NAME": job["name"]}
    found |= {"USER": user, "EXEC_HOST": "" if job["state"] == "pending" else "here"}
    found |= {"PEND_REASON": "", "EXIT_REASON": "", "EXIT_CODE": ""}
    if job["state"] == "pending":
        found["PEND_REASON"] = "New job is waiting for scheduling;"
    if job["state"] == "ended" and job["deleted"]:
        found |= {"STAT": "EXIT", "EXIT_REASON": "TERM_OWNER: job killed by owner"}
    elif job["code"]:
        found["EXIT_CODE"] = str(job["code"] % 256)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
