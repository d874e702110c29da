"""URLs of one or several servers of a model, and the exit of a process whose server is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from farm.errors import Unavailable
from farm.machine.programs import EXIT_SERVER_GONE
from farm.protocols.mip.remote import MipModel
from farm.worker.loader import LoadError, load_models
from farm.worker.servers import SEAT, models_of, reach, urls_of
from farm.worker.specs import most_servers
from tests.support.kubemo_server import kubemo_serving
from tests.support.time_limits import scaled


@pytest.mark.parametrize(
    ("spec", "urls"),
    [
        ("http://a:1", ["http://a:1"]),
        ("m@https://a/x", ["https://a/x"]),
        ("kserve+http://a,graphpipe+https://b", ["kserve+http://a", "graphpipe+https://b"]),
        ("m@mip://a:1,mip+unix:/p", ["mip://a:1", "mip+unix:/p"]),
        ("m@http://u:p@a/x,y,http://u:p@b", ["http://u:p@a/x,y", "http://u:p@b"]),
        ("kserve+mip://a:1", []),
        ("model.py:Beam", []),
        ("ftp://a", []),
    ],
)
def test_urls(spec: str, urls: list[str]) -> None:
    assert urls_of(spec) == urls


def test_how_many_servers_there_are() -> None:
    assert most_servers([]) == 0
    assert most_servers(["model.py"]) == 0
    assert most_servers(["model.py", "m=http://a,http://b,http://c", "n@mip://a:1,mip://b:1"]) == 3


def test_each_process_has_the_server_of_its_seat() -> None:
    with kubemo_serving("upper") as (first, _), kubemo_serving("upper") as (second, _):
        urls = [f"mip://127.0.0.1:{first}", f"mip://127.0.0.1:{second}"]
        program = (
            "import sys; from farm.worker.loader import load_models\n"
            "((name, model),) = load_models(sys.argv[1:]).items()\n"
            "print(type(model).__name__, name, model.description)\n"
        )
        for seat in (0, 1):
            done = subprocess.run(
                [sys.executable, "-c", program, f"m@{','.join(urls)}"],
                env={**os.environ, SEAT: str(seat)},
                capture_output=True,
                text=True,
                timeout=scaled(20.0),
                check=True,
            )
            # The same for all: another description of a model is reported.
            assert done.stdout == "Replica m m at several servers\n"
        (alone,) = models_of(urls[0]).values()
        assert isinstance(alone, MipModel)


def test_without_a_supervisor_there_is_no_dealing_out() -> None:
    with pytest.raises(Unavailable, match="2 servers of one model are for model processes"):
        models_of("http://a,http://b")
    with pytest.raises(LoadError, match="2 servers of one model"):
        load_models(["m=http://a,http://b"])


MODEL = """
import sys, time
import farm
from farm.errors import ModelFailed, Unavailable
from farm.worker.servers import Replica

class M(farm.Model):
    name = "m"
    copies = False

    def evaluate(self, inputs, config):
        raise (ModelFailed if config else Unavailable)("mine")

    def cost(self, inputs, config):
        return 7.0

    def value_and_gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return sens, in_wrt

m = Replica(M(), sys.argv[1])
assert sorted(m.operations) == ["cost", "evaluate", "value_and_gradient"]
assert m.value_and_gradient(0, 1, {}, 5.0, {}) == (5.0, 1)
assert m.cost({}, {}) == 7.0
assert not m.copies
"""


def ended(program: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a program with that model until it ends."""
    command = [sys.executable, "-c", MODEL + program, url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=scaled(20.0), check=False
    )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_the_process_ends_when_its_server_does_not_answer(listener: socket.socket) -> None:
    program = """
try:
    m.evaluate({}, {"a": 1})
except ModelFailed:
    print("goes on", flush=True)
m.evaluate({}, {})
"""
    done = ended(program, f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert done.returncode == EXIT_SERVER_GONE
    assert done.stdout == "goes on\n"
    assert done.stderr == "farm: mine; this process ends\n"


def test_the_process_ends_when_its_server_is_gone_and_nothing_is_asked(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:1", "kserve+https://127.0.0.1:1/x", f"mip+unix:{tmp_path}/s"]
    with ThreadPoolExecutor() as pool:
        all_done = list(pool.map(partial(ended, "time.sleep(1000)"), urls))
    for url, done in zip(urls, all_done, strict=True):
        assert done.returncode == EXIT_SERVER_GONE
        assert f"the model server {url} cannot be reached" in done.stderr


def test_a_server_is_reached_without_a_word(listener: socket.socket) -> None:
    reach(f"graphpipe+http://127.0.0.1:{listener.getsockname()[1]}/x")
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(10) == b""
