"""The servers that `kserve.py` compares: farm, and others in their own virtual environments.

Each serves two models that double four numbers: `trivial`, and `slow`, which takes 5 ms for each
execution of up to 64 rows. Every model runs in one process, separate from the server's.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import farm
from farm.transports.connection import read_connection

START_S = 60.0

FARM = """
import time
import farm

class Double(farm.Model):
    inputs = {"x": 4}
    outputs = {"y": 4}
    max_batch = 64
    sleep_s = 0.0

    def evaluate(self, inputs, config):
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return 2.0 * inputs["x"]

class Slow(Double):
    name = "slow"
    sleep_s = 0.005

class Trivial(Double):
    name = "trivial"
"""

MLSERVER = """
import time
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Double(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        if self.name == "slow":
            time.sleep(0.005)
        x = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("y", 2.0 * x)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""

PYTRITON = """
import sys, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

@batch
def trivial(x):
    return {"y": 2.0 * x}

@batch
def slow(x):
    time.sleep(0.005)
    return {"y": 2.0 * x}

http, grpc, metrics = map(int, sys.argv[1:])
ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
config = TritonConfig(http_address="127.0.0.1", grpc_address="127.0.0.1", **ports)
with Triton(config=config) as triton:
    for function, delay in ((trivial, 0), (slow, 1000)):
        triton.bind(
            model_name=function.__name__,
            infer_func=function,
            inputs=[Tensor(name="x", dtype=np.float64, shape=(4,))],
            outputs=[Tensor(name="y", dtype=np.float64, shape=(4,))],
            config=ModelConfig(
                max_batch_size=64,
                batcher=DynamicBatcher(max_queue_delay_microseconds=delay),
            ),
        )
    triton.serve()
"""

TRITON_MODEL = """
import time
import triton_python_backend_utils as pb
import json

class TritonPythonModel:
    def initialize(self, args):
        self.slow = json.loads(args["model_config"])["name"] == "slow"

    def execute(self, requests):
        if self.slow:
            time.sleep(0.005)
        return [
            pb.InferenceResponse([
                pb.Tensor("y", 2.0 * pb.get_input_tensor_by_name(request, "x").as_numpy())
            ])
            for request in requests
        ]
"""

TRITON_CONFIG = """
name: "NAME"
backend: "python"
max_batch_size: 64
input [{ name: "x" data_type: TYPE_FP64 dims: [4] }]
output [{ name: "y" data_type: TYPE_FP64 dims: [4] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching { max_queue_delay_microseconds: DELAY }
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server with its HTTP and gRPC addresses."""

    name: str
    http: tuple[str, int]
    grpc: str


@contextlib.contextmanager
def farm_peer(folder: Path) -> Iterator[Peer]:
    """Run `farm serve` with one worker process."""
    folder.mkdir()
    (folder / "models.py").write_text(FARM)
    models = [f"{folder / 'models.py'}:{name}" for name in ("Trivial", "Slow")]
    run = folder / "run"
    options = ["--port", "0", "--grpc-port", "0", "--dir", str(run)]
    with _process([sys.executable, "-m", "farm", "serve", *models, *options], folder):
        address = ""
        give_up = time.monotonic() + START_S
        while not address:
            if time.monotonic() > give_up:
                raise RuntimeError(f"farm did not start: {(folder / 'log').read_text()}")
            with contextlib.suppress(farm.FarmError):
                address = read_connection(run).url.removeprefix("http://")
            time.sleep(0.05)
        host, _, port = address.rpartition(":")
        yield Peer("farm", (host, int(port)), read_connection(run).grpc)


@contextlib.contextmanager
def mlserver_peer(folder: Path, python: Path) -> Iterator[Peer]:
    """Run MLServer with one inference worker."""
    folder.mkdir()
    http, grpc, metrics = _free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    settings = {"host": "127.0.0.1", "parallel_workers": 1, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "double.py").write_text(MLSERVER)
    tensor = {"datatype": "FP64", "shape": [-1, 4]}
    for name in ("trivial", "slow"):
        (folder / name).mkdir()
        model: dict[str, object] = {
            "name": name,
            "implementation": "double.Double",
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        }
        if name == "slow":
            model |= {"max_batch_size": 64, "max_batch_time": 0.001}
        (folder / name / "model-settings.json").write_text(json.dumps(model))
    with _process([str(python.with_name("mlserver")), "start", "."], folder):
        yield _ready(Peer("MLServer", ("127.0.0.1", http), f"127.0.0.1:{grpc}"), folder)


@contextlib.contextmanager
def pytriton_peer(folder: Path, python: Path) -> Iterator[Peer]:
    """Run Triton with models in a Python process, by nvidia-pytriton."""
    folder.mkdir()
    http, grpc, metrics = _free_ports(3)
    (folder / "serve.py").write_text(PYTRITON)
    with _process([str(python), "serve.py", str(http), str(grpc), str(metrics)], folder):
        yield _ready(Peer("pytriton", ("127.0.0.1", http), f"127.0.0.1:{grpc}"), folder)


@contextlib.contextmanager
def triton_peer(folder: Path, python: Path) -> Iterator[Peer]:
    """Run Triton itself, from nvidia-pytriton's package, with its own Python backend."""
    folder.mkdir()
    http, grpc = _free_ports(2)
    for name, delay in (("trivial", 0), ("slow", 1000)):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "1" / "model.py").write_text(TRITON_MODEL)
        config = TRITON_CONFIG.replace("NAME", name).replace("DELAY", str(delay))
        (folder / "models" / name / "config.pbtxt").write_text(config)
    (site,) = (python.parent.parent / "lib").glob("python3*/site-packages/pytriton/tritonserver")
    # The backend expects the interpreter of its Python version beside it.
    version = site.parents[2].name.removeprefix("python")
    shutil.copytree(site / "backends", folder / "backends")
    stub = site / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, folder / "backends" / "python")
    command = [
        str(site / "bin" / "tritonserver"),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
    ]
    libraries = site.parents[1] / "nvidia_pytriton.libs"
    path = {"PATH": f"{python.parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(libraries)}
    with _process(command, folder, path):
        yield _ready(Peer("Triton", ("127.0.0.1", http), f"127.0.0.1:{grpc}"), folder)


def _ready(peer: Peer, folder: Path) -> Peer:
    give_up = time.monotonic() + START_S
    url = f"http://{peer.http[0]}:{peer.http[1]}/v2/models/slow/ready"
    while True:
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            urllib.request.urlopen(url, timeout=1.0).close()
            return peer
        if time.monotonic() > give_up:
            raise RuntimeError(f"{peer.name} did not start: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.2)


@contextlib.contextmanager
def _process(
    command: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> Iterator[None]:
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=environment, start_new_session=True
        ) as peer,
    ):
        try:
            yield
        finally:
            peer.terminate()
            try:
                peer.wait(20.0)
            except subprocess.TimeoutExpired:
                peer.kill()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]
