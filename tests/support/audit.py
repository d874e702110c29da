"""Known weaknesses of the packages that tests run with: `make audit`.

It runs pip-audit, which uv fetches, over constraints.txt. pip-audit asks PyPI, or OSV with --osv.
The exit status is 1 for findings, and 3 if the service does not answer or knows few packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.lowest_versions import pins

ROOT = Path(__file__).parents[2]
FINDINGS, NOT_ASKED = 1, 3
LIMIT_S = 600
LONGEST_REASON = 200


def requirements(constraints: str) -> str:
    """The pinned packages as requirements, without local versions, which no service knows."""
    return "".join(f"{name}=={v.partition('+')[0]}\n" for name, v in pins(constraints).items())


def verdict(report: str, errors: str, service: str) -> tuple[int, list[str]]:
    """The exit status and the lines for a run of pip-audit.

    report: its JSON, "" if it failed. It is not trusted to fail: where no package is known to the
    service, as behind a mirror, pip-audit ends with status 0.
    """
    if not report.strip():
        said = [line.strip() for line in errors.splitlines() if line.strip()] or ["no reason"]
        return NOT_ASKED, [f"{service} could not be asked: {said[-1][:LONGEST_REASON]}"]
    packages = json.loads(report)["dependencies"]
    audited = [package for package in packages if "skip_reason" not in package]
    found = [
        f"{package['name']} {package['version']}: {weakness['id']}, corrected in "
        f"{', '.join(weakness['fix_versions']) or 'no release'}"
        for package in audited
        for weakness in package["vulns"]
    ]
    counts = f"{len(audited)} of {len(packages)} packages are known to {service}"
    if found:
        return FINDINGS, [*found, f"{counts}: raise these in constraints.txt and pyproject.toml"]
    if len(audited) < len(packages) / 2:
        return NOT_ASKED, [f"{counts}: too few to say anything"]
    return 0, [f"{counts}, and none has a known weakness"]


def main(arguments: Sequence[str]) -> int:
    """Run pip-audit, print one line for each finding and one in the end, return the status."""
    service = "osv" if "--osv" in arguments else "pypi"
    uv = Path(sys.executable).with_name("uv")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements((ROOT / "constraints.txt").read_text()))
        file.flush()
        command = [str(uv), "tool", "run", "--quiet", "pip-audit", "--format", "json", "--no-deps"]
        command += ["--disable-pip", "--vulnerability-service", service, "-r", file.name]
        command += ["--progress-spinner", "off"]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            report, errors = run.stdout, run.stderr
        except subprocess.TimeoutExpired:
            report, errors = "", f"no answer in {LIMIT_S} s"
    status, lines = verdict(report, errors, service)
    print("\n".join(f"audit: {line}" for line in lines))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
