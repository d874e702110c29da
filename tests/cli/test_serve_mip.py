"""`farm serve --mip`, run as a user does, with KubeMo's client."""

from __future__ import annotations

import re
from pathlib import Path

import kubemo
import pytest

from farm.transports.connection import read_connection
from tests.support.dispatcher_farm import BEAM, run_farm, serving
from tests.support.running_farm import wait_until

SHOUT = """
import farm

class Shout(farm.Model):
    name = "shout"
    inputs = {"text": farm.TensorInfo("text", (1,), "bytes")}
    outputs = {"text": farm.TensorInfo("text", (1,), "bytes")}

    def evaluate(self, inputs, config):
        return [inputs["text"][0].upper()]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beam.py").write_text(BEAM)
    (tmp_path / "shout.py").write_text(SHOUT)
    return tmp_path


def test_each_model_has_an_address_that_is_said(folder: Path) -> None:
    options = ("--mip", "beam=127.0.0.1:0", "--mip", "shout=unix:shout.sock")
    with serving(folder, "beam.py", "shout.py", *options) as served:
        mip = {model: address for address, model in served.connection.addresses["mip"].items()}
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", mip["beam"])
        assert mip["shout"] == f"unix://{folder}/shout.sock"
        client = kubemo.Client()
        entry = (kubemo.Text("[1, 2, 4]"), kubemo.Text("8"))
        ((bent,),) = client.inference(mip["beam"], (entry,))
        assert bent.decode() == [8.0, 4.0, 2.0]
        ((said,),) = client.inference(mip["shout"], ((kubemo.Text("hello"),),))
        assert said.decode() == "HELLO"
        _, out, _ = served.stop()
    assert f"MIP for beam at {mip['beam']}\n" in out
    assert f"MIP for shout at {mip['shout']}\n" in out
    assert not (folder / "shout.sock").exists()


def test_the_only_model_need_not_be_named_and_a_file_may_say_it(folder: Path) -> None:
    """It listens everywhere, as that is said to be secure."""
    (folder / "farm.toml").write_text('mip = ["0.0.0.0:0"]\n')
    with serving(folder, "beam.py", "--config", "farm.toml", "--insecure") as served:
        told = "the file has its name once it is known"
        wait_until(lambda: "beam" in read_connection(served.folder).addresses["mip"].values(), told)
        ((address, _),) = served.connection.addresses["mip"].items()
        assert kubemo.Client().ping(address) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--mip", "plate=127.0.0.1:0"], "'plate', which is not served; the models are beam"),
        (["shout.py", "--mip", "127.0.0.1:0"], "without a model; say which"),
        (["--mip", f"unix:/{'x' * 200}"], "cannot listen on unix:"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    folder: Path, options: list[str], complaint: str
) -> None:
    command = ("serve", "beam.py", *options, "--port", "0", "--dir", "run")
    status, _, errors = run_farm(*command, cwd=folder)
    assert status == 2
    assert complaint in errors
    assert errors.splitlines()[-1].startswith("farm: error: ")
