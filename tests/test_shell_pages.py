"""The blocks of a shell on pages run as shown, from the top of a page to its end, in one folder."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path

import h5py
import onnx
import pytest
from onnx import TensorProto, helper

import farm
from farm.errors import Cancelled, ModelFailed
from tests.support.coroutines import wait_until
from tests.support.front_door import front_door
from tests.support.shell_page import ROOT, ShellPage
from tests.support.shown_blocks import text_of
from tests.support.span_collector import SOON, span_collector
from tests.support.time_limits import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(scaled(150.0))]
LIMIT_S = scaled(30.0)
FEWER = {"--workers 4": "--workers 1"}
"""One process of a model is enough to answer a page."""
BEAM = """
import farm

class Beam(farm.Model):
    inputs, outputs = {"load": 1, "thickness": 1}, {"deflection": 1}

    def evaluate(self, inputs, config):
        return inputs["load"] / inputs["thickness"] ** 3
"""
OF_CONFIG = """
import farm

class Model(farm.Model):
    inputs, outputs = {}, {"y": 1}

    def evaluate(self, inputs, config):
        return [float(len(config))]
"""
"""A model that takes any parameter, as a key of its config."""


def shown_file(page: str, name: str) -> str:
    """Return the file that a page shows in a block that begins with its name."""
    text = text_of(f"docs/{page}")
    (found,) = re.findall(rf"```python\n(# {re.escape(name)}\n.*?)```", text, re.DOTALL)
    return str(found)


def points(path: Path) -> list[int]:
    """Return the status of each point of a sweep."""
    with h5py.File(path) as file:
        return list(file["status"][:])


def test_sweeps(tmp_path: Path) -> None:
    forward = farm.model(inputs={"k": 1, "q": 1}, outputs={"y": 1})(
        lambda k, q, config: k * q * config["mesh"]
    )
    load = "--param load=log:1:1000 "
    design = f"{load}--param thickness=0.01:0.05 --design sobol:256 --seed 7"
    with (
        front_door({"forward": forward}) as door,
        ShellPage("docs/sweeps.md", tmp_path) as page,
    ):
        page.replace("http://node3:4242", door.url)
        page.replace(f"{load}... ", f"{design} ")
        page.write("beam.py", BEAM)
        page.write("model.py", OF_CONFIG)
        page.type_next("pip install")
        page.type_next("farm sweep beam.py")
        page.type_next("farm sweep --to")
        assert points(page.folder / "sweep.h5") == [1] * 100
        for option in ("solver=euler,rk4", "a=normal:5:1", "load=1:10", "solver=euler,rk "):
            page.type_next(f"farm sweep model.py --param {option}")
        page.write("points.csv", "n,hours\n1,0.5\n2,0.25\n")
        page.write("more.csv", "n\n2\n3\n")
        page.prepare("farm sweep model.py --param k=0:1 --design grid:10 -n 1 -o grid.h5")
        table = "--design file:points.csv --cost column:hours"
        page.prepare(f"farm sweep model.py {table} -n 1 -o points.h5")
        page.type_next("farm sweep extend sweep.h5")
        done = {
            name: len(points(page.folder / f"{name}.h5")) for name in ("sweep", "grid", "points")
        }
        assert done == {"sweep": 200, "grid": 28, "points": 3}
        page.type_next("farm sweep model.py --param n=int")
        early = "--overwrite --max-hours 1e-9 -n 1"
        page.prepare(f"farm sweep beam.py {design} {early} -o beam.h5", status=3)
        assert 0 in points(page.folder / "beam.h5")
        page.type_next(f"farm sweep beam.py {load}... -o beam.h5")
        assert points(page.folder / "beam.h5") == [1] * 256
        page.type_next("farm sweep plot")
        assert (page.folder / "beam.html").stat().st_size > 1000


def test_the_line_protocol(tmp_path: Path) -> None:
    if shutil.which("Rscript") is None:
        pytest.skip("needs R (apt install r-base-core)")
    with ShellPage("docs/lines.md", tmp_path) as page:
        lines = ROOT / "examples" / "lines"
        shutil.copy(lines / "farm_lines.R", page.folder)
        shutil.copy(lines / "spring.R", page.folder / "model.R")
        shutil.copy(lines / "spring.pl", page.folder / "model")
        (page.folder / "model").chmod(0o755)
        page.serve_each("farm serve model.R", {"spring"}, {"spring"})


def test_kserve(tmp_path: Path) -> None:
    with ShellPage("docs/kserve.md", tmp_path, FEWER) as page:
        page.write("waves.py", shown_file("kserve.md", "waves.py"))
        page.type_next("farm serve")
        page.replace("http://127.0.0.1:4242", page.connection.url)
        assert '"energy":14' in page.type_next("curl")
        page.replace("--grpc-port 8001", "--grpc-port 0")
        page.type_next("pip install")
        assert page.connection.grpc
        page.replace("http://127.0.0.1:4242", page.connection.url)
        assert '"predictions":[{"height":[2.0,4.0,6.0],"energy":[14.0]}' in page.type_next("curl")


def test_mip(tmp_path: Path) -> None:
    with ShellPage("docs/mip.md", tmp_path, FEWER | {"127.0.0.1:9000": "127.0.0.1:0"}) as page:
        page.write("shout.py", shown_file("mip.md", "shout.py"))
        page.type_next("farm serve")
        assert list(page.connection.addresses["mip"].values()) == ["Shout"]


def test_graphpipe(tmp_path: Path) -> None:
    double = farm.model(inputs={"x": 1}, outputs={"y": 1})(lambda x: 2 * x)
    with (
        ShellPage("docs/graphpipe.md", tmp_path, FEWER) as page,
        front_door({"net": double}) as net,
        front_door({"beam": double}) as beam,
    ):
        page.write("waves.py", shown_file("graphpipe.md", "waves.py"))
        page.type_next("farm serve waves.py")
        for shown, door in (("host", net), ("a", net), ("b", net), ("farm2", beam)):
            port = 4242 if shown == "farm2" else 9000
            page.replace(f"//{shown}:{port}", door.url.removeprefix("http:"))
        page.serve_each("farm serve graphpipe+http", {"net"}, {"net"}, {"beam"}, {"net"})


SERVER = """
import umbridge

class Forward(umbridge.Model):
    def __init__(self):
        super().__init__("forward")

    def get_input_sizes(self, config):
        return [2]

    def get_output_sizes(self, config):
        return [1]

    def supports_evaluate(self):
        return True

    def __call__(self, parameters, config):
        return [[sum(parameters[0])]]

umbridge.serve_models([Forward()], 4242)
"""


def test_umbridge(tmp_path: Path) -> None:
    forward = farm.model(inputs={"x": 2}, outputs={"y": 1})(lambda x: x[:1])
    with (
        ShellPage("docs/umbridge.md", tmp_path, FEWER) as page,
        front_door({"forward": forward, "back": forward}) as there,
    ):
        page.write("model.py", BEAM)
        page.write("server.py", SERVER)
        page.type_next("farm serve model.py")
        page.type_next("farm serve server.py")
        assert page.models() == ["forward"]
        page.replace("http://127.0.0.1:4242", page.connection.url)
        assert page.type_next("curl") == '{"output":[[3.0]]}'
        answers = page.type_next("curl -N").splitlines()
        outputs = sorted(json.loads(line)["outputs"] for line in answers)
        assert outputs == [[[3.0]], [[7.0]]]
        page.replace("http://127.0.0.1:4243", there.url)
        page.serve_each("farm serve http", {"forward", "back"}, {"forward"})


def test_several_servers_of_a_model(tmp_path: Path) -> None:
    beam = farm.model(inputs={"x": 1}, outputs={"y": 1})(lambda x: x)
    with ShellPage("docs/models.md", tmp_path) as page, contextlib.ExitStack() as nodes:
        for number in (1, 2, 3):
            door = nodes.enter_context(front_door({"beam": beam}))
            page.replace(f"http://node{number}:4243", door.url)
        page.serve_each("farm serve", {"beam"})


def write_network(path: Path) -> None:
    """Write a network y = exp(x) of two numbers as an ONNX file."""
    tensors = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["N", 2]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", *[[t] for t in tensors])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def test_multilevel(tmp_path: Path) -> None:
    with ShellPage("docs/multilevel.md", tmp_path, FEWER) as page:
        shutil.copy(ROOT / "examples" / "multilevel" / "rod.py", page.folder)
        write_network(page.folder / "surrogate.onnx")
        page.environment["FARM_RECORD"] = "rod.record"
        page.type_next("farm serve rod.py:Fine")
        assert page.models() == ["coarse", "fine", "surrogate"]
        with page.connect() as client:
            client.model("fine")([1.0, 1.0])
        page.end_server()
        page.type_next("farm sweep")
        assert points(page.folder / "train.h5") == [1] * 32
        (page.folder / "train.h5").unlink()  # the record is in place of the sweep
        page.type_next("farm record export")
        assert points(page.folder / "train.h5") == [1]


def test_a_record_for_arviz(tmp_path: Path) -> None:
    with ShellPage("docs/client.md", tmp_path) as page:
        page.write("model.py", OF_CONFIG)
        design = "--param k=0:1 --design random:5"
        page.prepare(f"farm sweep model.py {design} -n 1 -o s.h5 --record calls.record")
        page.type_next("farm record export")
        assert points(page.folder / "evaluations.h5") == [1] * 5


SIMULATOR = """
import time
from pathlib import Path
import farm

class Beam(farm.Model):
    name, inputs, outputs = "beam", {"x": 3}, {"y": 1}

    def evaluate(self, inputs, config):
        x = inputs["x"]
        if x[0] < 0:
            raise ArithmeticError("no root")
        while x[0] > 100 and not Path("open").exists():
            time.sleep(0.02)
        return [x.sum()]
"""
"""Fails below 0; above 100 it runs until there is a file `open`."""


def test_seeing(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (apt install prometheus)")
    with ShellPage("docs/seeing.md", tmp_path) as page, span_collector() as collector:
        page.environment |= SOON
        page.write("beam.py", SIMULATOR)
        page.serve("farm serve beam.py --workers 1")
        with page.connect() as client:
            with pytest.raises(ModelFailed):
                client.model()([-1.0, 0.0, 0.0])
            (failure,) = client.failures()
        page.replace("3f2a90c1", failure.id)
        with (
            page.connect("survey") as first,
            page.connect("sampler", "3") as sampler,
            page.connect("sweep-3f2a") as sweep,
        ):
            long = first.model().submit([101.0, 0.0, 0.0])
            waiting = [each.model().submit([1.0, 2.0, 3.0]) for each in (sampler, sweep)]
            wait_until(lambda: sampler.why(client="sampler")["phase"] == "queued")
            wait_until(lambda: sweep.why(client="sweep-3f2a")["phase"] == "queued")
            assert "busy, with calls of 'survey' (1)" in page.type_next("farm status --why sampler")
            assert "no root" in page.type_next("farm failures")
            page.type_next("farm cancel")
            for future in waiting:
                with pytest.raises(Cancelled):
                    future.result(LIMIT_S)
            page.write("open", "")
            assert long.result(LIMIT_S) == [101.0]
        assert "1 call failed" in page.type_next("farm status --since 3h")
        page.type_next("until farm call")
        assert '"y":[6.0]' in (page.folder / "answer.json").read_text().replace(" ", "")
        page.replace("http://127.0.0.1:4242", page.connection.url)
        page.type_next("curl")
        page.replace("http://collector:4318", collector.url)
        page.type_next("export OTEL")
        page.replace("http://127.0.0.1:4242", page.connection.url)
        assert page.type_next("curl") == '{"output":[[6.0]]}'
        (span,) = collector.wait(1, lambda span: span.name == "POST /Evaluate")
        assert span.resource["service.name"] == "farm"


POSTERIOR = """
import farm

class Posterior(farm.Model):
    inputs, outputs, version = {"k": 1}, {"y": 1}, "3"

    def evaluate(self, inputs, config):
        return -(inputs["k"] ** 2)
"""
SPREAD = """
[common]
parnames = [k]
outcome_names = [y]
outcome_types = [continuous]
strategy_names = [spread]

[k]
par_type = continuous
lower_bound = 0
upper_bound = 1

[spread]
generator = SobolGenerator
min_asks = 2

[farm]
model = Posterior
"""


def test_the_record(tmp_path: Path) -> None:
    with ShellPage("docs/record.md", tmp_path, FEWER) as page:
        page.write("posterior.py", POSTERIOR)
        page.write("model.py", POSTERIOR)
        page.write("tune.ini", SPREAD)
        page.type_next("farm serve")
        with page.connect() as client:
            for k in (0.5, 0.25, 0.5):
                client.model()([k])
        page.end_server()
        page.type_next("farm sweep")
        for day in ("monday", "tuesday"):
            shutil.copy(page.folder / "posterior.record", page.folder / f"{day}.record")
        shutil.copy(page.folder / "out.h5", page.folder / "sweep.h5")
        page.type_next("farm record status")
        assert points(page.folder / "posterior.h5") == [1, 1]
        page.type_next("farm record export posterior.record -o seeds.h5")
        assert points(page.folder / "seeds.h5") == [1] * 258
