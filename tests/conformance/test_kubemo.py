"""MIP from outside: the stock client, unchanged, against `farm serve` and against a farm in front
of KubeMo's own server.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import kubemo
import pytest
import umbridge
from kubemo.errors import InvocationError
from PIL import Image

from tests.support.dispatcher_farm import Served, serving
from tests.support.kubemo_server import kubemo_serving

MODELS = """
import io

import numpy as np
from PIL import Image

import farm

ONE = farm.TensorInfo("value", (1,), "bytes")


class Double(farm.Model):
    name, inputs, outputs, max_batch = "double", {"x": 2}, {"y": 2}, 64

    def evaluate(self, inputs, config):
        return {"y": 2 * inputs["x"]}


class SumProduct(farm.Model):
    name, inputs, outputs = "sum_product", {"a": 2, "b": 2}, {"sum": 2, "product": 2, "first": 1}

    def evaluate(self, inputs, config):
        a, b = inputs["a"], inputs["b"]
        return a + b, a * b, a[:1]


class Upper(farm.Model):
    name, inputs, outputs = "upper", {"text": ONE}, {"text": ONE}

    def evaluate(self, inputs, config):
        return [[inputs["text"][0].decode().upper()]]


class Turn(farm.Model):
    name, inputs, outputs = "turn", {"image": ONE}, {"image": ONE}

    def evaluate(self, inputs, config):
        image, file = Image.open(io.BytesIO(inputs["image"][0])), io.BytesIO()
        image.transpose(Image.Transpose.ROTATE_90).save(file, "PNG")
        return [[file.getvalue()]]


class Failing(farm.Model):
    name, inputs, outputs = "failing", {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        raise ValueError("as it should")


class Through(farm.MipModel):
    def __init__(self):
        super().__init__(URL, inputs={"x": 2}, outputs={"y": 2}, name="through", max_batch=100)
"""
NAMES = ("double", "sum_product", "upper", "turn", "failing", "through")

Addresses = dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a farm with all models, and KubeMo's own server behind one model."""
    folder = tmp_path_factory.mktemp("farm")
    with kubemo_serving("double") as (port, _):
        (folder / "models.py").write_text(f"URL = 'mip://127.0.0.1:{port}'\n{MODELS}")
        classes = ("Double", "SumProduct", "Upper", "Turn", "Failing", "Through")
        models = [f"models.py:{name}" for name in classes]
        mip = [word for name in NAMES[:-1] for word in ("--mip", f"{name}=127.0.0.1:0")]
        mip += ["--mip", "through=unix:through.sock"]
        with serving(folder, *models, *mip, "--workers", "1") as served:
            yield served


@pytest.fixture(scope="module")
def at(served: Served) -> Addresses:
    """Return the address of each model."""
    return {model: address for address, model in served.connection.addresses["mip"].items()}


def json_of(text: str) -> Any:
    return kubemo.Json(io.BytesIO(text.encode()))


def decoded(answer: Any) -> list[list[Any]]:
    return [[value.decode() for value in entry] for entry in answer]


@pytest.fixture(scope="module")
def client() -> Any:
    return kubemo.Client()


def test_ping(client: Any, at: Addresses) -> None:
    for address in at.values():
        assert client.ping(address) > 0


@pytest.mark.parametrize("make", [kubemo.Text, json_of])
@pytest.mark.parametrize("model", ["double", "through"])
def test_numbers(client: Any, at: Addresses, make: Any, model: str) -> None:
    batch = tuple((make(f"[{n}, 0.1]"),) for n in range(1000 if model == "double" else 50))
    answer = decoded(client.inference(at[model], batch))
    assert answer == [[[2.0 * n, 0.2]] for n in range(len(batch))]


def test_more_outputs_than_inputs_in_a_batch(client: Any, at: Addresses) -> None:
    batch = tuple((json_of(f"[{n}, 2]"), json_of("[3, 4]")) for n in range(10))
    answer = decoded(client.inference(at["sum_product"], batch))
    assert answer == [[[n + 3, 6], [3 * n, 8], [n]] for n in range(10)]


def test_texts(client: Any, at: Addresses) -> None:
    batch = tuple((kubemo.Text(text),) for text in ("hello", "wörld", ""))
    assert decoded(client.inference(at["upper"], batch)) == [["HELLO"], ["WÖRLD"], [""]]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP"])
def test_images(client: Any, at: Addresses, form: str) -> None:
    file = io.BytesIO()
    image = Image.new("RGB", (16, 8), (250, 250, 250))
    image.paste((0, 0, 0), (8, 0, 16, 8))  # the right half is black
    image.save(file, form)
    file.seek(0)
    ((turned,),) = decoded(client.inference(at["turn"], ((kubemo.Image(file),),)))
    assert turned.size == (8, 16)
    assert turned.getpixel((4, 2))[0] < 50
    assert turned.getpixel((4, 13))[0] > 200


@pytest.mark.parametrize(
    ("model", "values", "code"),
    [
        ("failing", ["[1]"], 5),
        ("double", ["[1]"], 4),
        ("double", ["hello"], 5),
        ("double", ["[1, 2]", "[1, 2]"], 4),
        ("turn", ["no image"], 5),
    ],
)
def test_errors(client: Any, at: Addresses, model: str, values: list[str], code: int) -> None:
    entry = tuple(kubemo.Text(value) for value in values)
    with pytest.raises(InvocationError, match=f"error code: {code}"):
        client.inference(at[model], (entry,))


def test_umbridge_has_the_same_models(client: Any, served: Served, at: Addresses) -> None:
    assert set(umbridge.supported_models(served.connection.url)) == set(NAMES)
    for model in ("double", "through"):
        assert umbridge.HTTPModel(served.connection.url, model)([[1.5, 2]]) == [[3.0, 4.0]]
        ((y,),) = decoded(client.inference(at[model], ((json_of("[1.5, 2]"),),)))
        assert y == [3.0, 4.0]
