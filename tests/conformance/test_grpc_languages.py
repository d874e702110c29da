"""gRPC clients in C++ and Go, generated from farm's kserve.proto, with the libraries of Debian."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from farm.protocols.kserve import grpc as kserve_grpc
from tests.support.dispatcher_farm import Served, farm_of
from tests.support.time_limits import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(scaled(300.0))]

LIMIT_S = scaled(60.0)
"""Longer than the limit of the clients' own calls."""

CLIENTS = Path(__file__).parent / "clients"
PROTO = Path(next(iter(kserve_grpc.__path__))) / "kserve.proto"
GO_PACKAGES = Path("/usr/share/gocode")

MODELS = """
import time
import farm

class Twice(farm.Model):
    name = "twice"
    inputs = {"x": 3}
    outputs = {"y": 3}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]

class Same(farm.Model):
    name = "same"
    inputs = {"x": -1}
    outputs = {"y": -1}

    def evaluate(self, inputs, config):
        return inputs["x"]

class Slow(farm.Model):
    name = "slow"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        time.sleep(2.0)
        return inputs["x"]

class Count(farm.Model):
    name = "count"
    inputs = {"x": 1}
    outputs = {"i": 1}

    def stream(self, inputs, config):
        for i in range(int(inputs["x"][0])):
            yield [i]
"""

NOT_FOUND, DEADLINE_EXCEEDED, CANCELLED = "5", "4", "1"


def needs(*programs: str, packages: str) -> None:
    """Skip without the programs and folders."""
    if not all(shutil.which(program) or Path(program).exists() for program in programs):
        pytest.skip(f"a compiler or library is missing: apt install {packages}")


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a program to its end; return what it prints."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(240.0),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def cpp_client(folder: Path) -> Path:
    """Generate and compile the client in C++: ten seconds of processor time."""
    needs(
        *("g++", "protoc", "grpc_cpp_plugin", "pkg-config", "/usr/include/grpcpp/grpcpp.h"),
        packages="g++ libgrpc++-dev pkg-config protobuf-compiler-grpc",
    )
    plugin = f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}"
    protoc = ("protoc", f"--proto_path={PROTO.parent}", "--cpp_out=.", "--grpc_out=.", plugin)
    run(*protoc, PROTO.name, cwd=folder)
    libraries = shlex.split(
        run("pkg-config", "--cflags", "--libs", "grpc++", "protobuf", cwd=folder)
    )
    compile_it = ("g++", "-std=c++17", "-O0", "-I.", "-o", "client", CLIENTS / "client.cc")
    run(*compile_it, *libraries, cwd=folder)
    return folder / "client"


def go_client(folder: Path) -> Path:
    """Generate and compile the client in Go: fifteen seconds of processor time."""
    needs(
        *(
            "go",
            "protoc",
            "protoc-gen-go",
            GO_PACKAGES.joinpath("src/google.golang.org/grpc").as_posix(),
        ),
        packages="golang-go golang-google-grpc-dev golang-goprotobuf-dev protobuf-compiler",
    )
    generated = folder / "src" / "farm" / "kserve"
    generated.mkdir(parents=True)
    form = f"--go_out=plugins=grpc,import_path=kserve:{generated}"
    run("protoc", f"--proto_path={PROTO.parent}", form, PROTO.name, cwd=folder)
    run(
        *("go", "build", "-o", folder / "client", CLIENTS / "client.go"),
        cwd=folder,
        GO111MODULE="off",
        GOPATH=f"{folder}:{GO_PACKAGES}",
        GOCACHE=str(folder / "cache"),
        CGO_ENABLED="0",
    )
    return folder / "client"


@pytest.fixture(scope="module", params=[cpp_client, go_client])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Callable[[Path], Path] = request.param
    return made(tmp_path_factory.mktemp(made.__name__))


served = farm_of(MODELS, "Twice", "Same", "Slow", "Count", options="--grpc-port 0", workers=2)


def lines(client: Path, served: Served, what: str) -> list[str]:
    """Return what the client prints, without the brackets and words of its language."""
    done = subprocess.run(
        [client, served.connection.grpc, what],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = {"true": "1", "false": "0"}
    found = [line.strip("[]") for line in done.stdout.splitlines()]
    return [words.get(line, line) for line in found]


@pytest.mark.parametrize("what", ["infer", "typed"])
def test_inference_with_raw_and_typed_tensors(client: Path, served: Served, what: str) -> None:
    assert lines(client, served, what) == ["2 4 6"]


def test_a_stream_has_every_answer_and_survives_an_error(client: Path, served: Served) -> None:
    *answers, is_error, has_ended = lines(client, served, "stream")
    assert answers == ["0", "1", "2"]
    assert (is_error, has_ended) == ("1", "1")


def test_an_unknown_model(client: Path, served: Served) -> None:
    assert lines(client, served, "unknown") == [NOT_FOUND]


def test_a_deadline_passes_while_the_model_runs(client: Path, served: Served) -> None:
    assert lines(client, served, "deadline") == [DEADLINE_EXCEEDED]


def test_a_cancelled_stream_frees_its_worker(client: Path, served: Served) -> None:
    for _ in range(3):  # more than there are workers; their streams would take hours to end
        assert lines(client, served, "cancel") == [CANCELLED]
    assert lines(client, served, "infer") == ["2 4 6"]


def test_sixteen_mebibytes_each_way(client: Path, served: Served) -> None:
    assert lines(client, served, "large") == ["1"]


def test_many_threads_on_one_connection(client: Path, served: Served) -> None:
    assert lines(client, served, "many") == ["320"]


@pytest.mark.parametrize("client", [go_client], indirect=True)
def test_reflection(client: Path, served: Served) -> None:
    assert lines(client, served, "services") == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
