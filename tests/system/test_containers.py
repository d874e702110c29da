"""A farm on real containers of podman, from an image that is made here of this Python.

No registry is needed. `make test-containers` runs this where podman is.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import farm
from tests.support.running_farm import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

IMAGE = "farm-test-umbridge"
SERVER = Path(__file__).parents[1] / "support" / "container_runtime" / "umbridge_server.py"


def podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with Python and the server, in an empty file system."""
    python, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    archive = tmp_path_factory.mktemp("image") / "root.tar"

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        unused = r"/(site-packages|test|__pycache__|idlelib|config-[^/]*)(/|$)"
        return None if re.search(unused, member.name) else member

    with tarfile.open(archive, "w") as root:
        root.add(python)
        root.add(library, filter=kept)
        root.add(SERVER, "/server.py")
        for binary in (python, *library.glob("lib-dynload/*.so")):
            for path in re.findall(r"/\S+", libraries_of(binary)):
                with contextlib.suppress(KeyError):
                    root.getmember(path.lstrip("/"))
                    continue
                root.add(Path(path).resolve(), path)
    command = f'CMD ["{python}", "-I", "-S", "/server.py"]'
    podman("import", "--change", command, "--change", "ENV HOST=0.0.0.0", str(archive), IMAGE)
    yield f"podman://localhost/{IMAGE}"
    podman("rmi", "--force", IMAGE)


def libraries_of(binary: Path) -> str:
    """Return what ldd says of a program after its first line's name."""
    said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout
    return "\n".join(re.findall(r"(?:=> |^\s)(/\S+)", said, re.MULTILINE))


def containers() -> list[str]:
    listed = podman("ps", "--all", "--filter", "label=farm.user", "--format", "{{.Names}}")
    return [name for name in listed.split() if name.startswith("farm-")]


def test_a_farm_on_containers(image: str, tmp_path: Path) -> None:
    assert shutil.which("podman"), "this test needs podman: apt-get install podman"
    with farm.serve(f"double@{image}", workers=2, dir=tmp_path / "run") as client:
        model = client.model("double")
        assert [float(y[0]) for y in model.map([float(i)] for i in range(6))] == [0, 2, 4, 6, 8, 10]
        first, second = containers()
        podman("kill", first)
        wait_until(lambda: first not in containers() and len(containers()) == 2, "another one")
        os.kill(int(second.split("-")[1]), signal.SIGKILL)  # its worker
        wait_until(lambda: second not in containers() and len(containers()) == 2, "another one")
        assert float(model.evaluate([21.0])[0]) == 42.0
    wait_until(lambda: not containers(), "all are removed")
