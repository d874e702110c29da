"""Wheels: of a small pure package, made without a build system, and farm's own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wheel_of(project: Path, folder: Path) -> Path:
    """Build the wheel of a project folder with a pyproject.toml and packages, in `folder`.

    Source: PyPA specification "Binary distribution format", 1.0.
    """
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = about["name"].replace("-", "_"), about["version"]
    info = f"{name}-{version}.dist-info"
    points = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in found.items())
        for group, found in about.get("entry-points", {}).items()
    )
    files = {
        str(path.relative_to(project)): path.read_text() for path in sorted(project.glob("*/*.py"))
    } | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """A folder with the wheel installed by pip, for the module search path."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "install", "--no-index", "--no-deps", "--target", str(folder), str(wheel)]
    subprocess.run(command, check=True)
    return folder


def distributions_of_farm(folder: Path) -> tuple[Path, Path]:
    """Build farm's own wheel and source distribution in `folder`, as its build system does."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def fresh_environment(wheel: Path, folder: Path) -> Path:
    """Make a virtual environment with the wheel installed by uv; return its `bin` folder.

    Other packages are those of the environment of the tests. The checkout is not on its path.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--offline"]
    subprocess.run([*uv, "--python", str(python), "--no-deps", str(wheel)], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for library in Path(sys.prefix, "lib").glob("*mpi*"):  # MPICH is found beside the environment
        (folder / "lib" / library.name).symlink_to(library)
    return folder / "bin"
