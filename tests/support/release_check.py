"""Build the distributions of a release, check them, install and use them: `make release-check`.

It fails where the versions of the project's files differ, or where a step fails, with that step's
output. It publishes nothing.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.wheel import ROOT, distributions_of_farm

VERSION_IN = {
    "farm/version.py": r'__version__ = "(.+)"',
    "CITATION.cff": r"^version: (.+)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.+)"$',
    "packaging/spack/packages/py_modelfarm/package.py": r'^    version\("([^"]+)"',
    "packaging/container/Dockerfile": r'image\.version="(.+)"',
    "packaging/container/farm.def": r"image\.version (.+)$",
}
"""Files that name the version, each with the pattern of its first mention."""

RELEASED = {"CHANGELOG.md": r"^## \[(\d.+?)\]"}
"""The file that names it once it is to be released."""

USE = """
import farm


@farm.model(inputs={"x": 2}, outputs={"y": 1})
def forward(x):
    return x[0] + 10 * x[1]


if __name__ == "__main__":
    with farm.serve(forward) as client:
        assert client.model("forward")([1.0, 2.0]).tolist() == [21.0]
    done = farm.sweep(forward, {"x[0]": (0, 1), "x[1]": 2.0}, n=4, out="s.h5")
    done.wait()
    assert done.to_xarray().sizes["point"] == 4
"""


def versions(root: Path = ROOT, patterns: Mapping[str, str] = VERSION_IN) -> dict[str, str]:
    """The version in each file that names one; "" where there is none."""
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else ""
    return found


def run(step: str, *command: str | Path, cwd: Path) -> None:
    """Run one step and print its name; exit with its output if it fails."""
    print(f"release-check: {step}", flush=True)
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nrelease-check: {step}: exit status {done.returncode}")


def main() -> None:
    """Check the versions, build, install and use."""
    found = versions(patterns=VERSION_IN | RELEASED)
    if len(set(found.values())) != 1:
        lines = "\n".join(f"  {version or 'none':10} {name}" for name, version in found.items())
        sys.exit(f"release-check: the files name different versions:\n{lines}")
    uv = Path(sys.executable).with_name("uv")
    with tempfile.TemporaryDirectory(prefix="farm-release-") as name:
        folder = Path(name)
        print("release-check: wheel and source distribution", flush=True)
        wheel, source = distributions_of_farm(folder / "dist")
        run(
            "twine check",
            uv,
            "tool",
            "run",
            "twine",
            "check",
            "--strict",
            wheel,
            source,
            cwd=folder,
        )
        citation = ROOT / "CITATION.cff"
        run(
            "CITATION.cff",
            uv,
            "tool",
            "run",
            "cffconvert",
            "--validate",
            "-i",
            citation,
            cwd=folder,
        )
        environment = folder / "env"
        run("a new environment", uv, "venv", "--python", sys.executable, environment, cwd=folder)
        python = environment / "bin" / "python"
        install: list[str | Path] = [
            "pip",
            "install",
            "--python",
            python,
            "--constraint",
            ROOT / "constraints.txt",
        ]
        run("install the wheel", uv, *install, f"{wheel}[xarray]", cwd=folder)
        (folder / "use.py").write_text(USE)
        run("a call and a sweep", python, "-W", "error", "use.py", cwd=folder)
        run("the command", environment / "bin" / "farm", "--version", cwd=folder)
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        print(f"release-check: all passed for {found['CITATION.cff']}")
        print(f"release-check: sha256 of {source.name}: {digest}")


if __name__ == "__main__":
    main()
