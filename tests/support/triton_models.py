"""The models that the Python examples of Triton's clients call, as models of farm.

    farm serve tests/support/triton_models.py --kserve-dialect triton --port 8000 --grpc-port 8001

docs/kserve.md lists the examples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from farm import Model, Sequence, TensorInfo
from farm.model import Config, Inputs


def sum_and_difference(dtype: str) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """Return the inputs and outputs of the `simple` models."""
    inputs = {name: TensorInfo(name, (16,), dtype) for name in ("INPUT0", "INPUT1")}
    outputs = {name: TensorInfo(name, (16,), dtype) for name in ("OUTPUT0", "OUTPUT1")}
    return inputs, outputs


class Simple(Model):
    """Adds and subtracts."""

    name = "simple"
    inputs, outputs = sum_and_difference("int32")
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}


class SimpleInt8(Simple):
    """The same for bytes."""

    name = "simple_int8"
    inputs, outputs = sum_and_difference("int8")


class SimpleString(Model):
    """The same for numbers written as text."""

    name = "simple_string"
    inputs, outputs = sum_and_difference("bytes")
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        a, b = (inputs[name].astype(int) for name in ("INPUT0", "INPUT1"))
        return {
            name: np.vectorize(lambda value: b"%d" % value, otypes=[object])(values)
            for name, values in (("OUTPUT0", a + b), ("OUTPUT1", a - b))
        }


class SimpleIdentity(Model):
    """Returns its texts."""

    name = "simple_identity"
    inputs = {"INPUT0": TensorInfo("INPUT0", (-1,), "bytes")}
    outputs = {"OUTPUT0": TensorInfo("OUTPUT0", (-1,), "bytes")}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return {"OUTPUT0": inputs["INPUT0"]}


class CustomIdentityInt32(Model):
    """Returns its numbers."""

    name = "custom_identity_int32"
    inputs = {"INPUT0": TensorInfo("INPUT0", (-1,), "int32")}
    outputs = {"OUTPUT0": TensorInfo("OUTPUT0", (-1,), "int32")}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return {"OUTPUT0": inputs["INPUT0"]}


class RepeatInt32(Model):
    """Answers once for each number of IN, after as many milliseconds as DELAY has for it."""

    name = "repeat_int32"
    inputs = {
        "IN": TensorInfo("IN", (-1,), "int32"),
        "DELAY": TensorInfo("DELAY", (-1,), "uint32"),
        "WAIT": TensorInfo("WAIT", (1,), "uint32"),
    }
    outputs = {"OUT": TensorInfo("OUT", (1,), "int32")}

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        for value, delay_ms in zip(inputs["IN"], inputs["DELAY"], strict=True):
            time.sleep(int(delay_ms) / 1000)
            yield {"OUT": np.array([value], np.int32)}


class SimpleSequence(Model):
    """Returns its number, one more at the start of a sequence."""

    name = "simple_sequence"
    inputs = {"INPUT": TensorInfo("INPUT", (1,), "int32")}
    outputs = {"OUTPUT": TensorInfo("OUTPUT", (1,), "int32")}
    stateful = True

    def evaluate(  # type: ignore[override]
        self, inputs: Inputs, config: Config, sequence: Sequence
    ) -> Any:
        return {"OUTPUT": inputs["INPUT"] + np.int32(sequence.start)}


class SimpleDynaSequence(SimpleSequence):
    """Returns its number, one more at the start of a sequence, and the sequence's id at its end."""

    name = "simple_dyna_sequence"

    def evaluate(  # type: ignore[override]
        self, inputs: Inputs, config: Config, sequence: Sequence
    ) -> Any:
        (output,) = super().evaluate(inputs, config, sequence).values()
        return {"OUTPUT": output + np.int32(int(sequence.id) if sequence.end else 0)}


class SimpleStringDynaSequence(SimpleSequence):
    """Returns the sum of the sequence's numbers, and adds its id, a number as text, at its end."""

    name = "simple_string_dyna_sequence"

    def evaluate(  # type: ignore[override]
        self, inputs: Inputs, config: Config, sequence: Sequence
    ) -> Any:
        total = sequence["total"] = sequence.get("total", 0) + inputs["INPUT"]
        return {"OUTPUT": total + np.int32(int(sequence.id) if sequence.end else 0)}


class Densenet(Model):
    """Takes an image as DenseNet does, and returns the mean of each colour as its first classes."""

    name = "densenet_onnx"
    inputs = {"data_0": TensorInfo("data_0", (3, 224, 224), "float32")}
    outputs = {"fc6_1": TensorInfo("fc6_1", (1000,), "float32")}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        classes = np.zeros(1000, np.float32)
        classes[:3] = inputs["data_0"].mean(axis=(1, 2))
        return {"fc6_1": classes}


class PreprocessInceptionEnsemble(Model):
    """Takes files of images, and returns how often each byte occurs in them as its classes."""

    name = "preprocess_inception_ensemble"
    inputs = {"INPUT": TensorInfo("INPUT", (1,), "bytes")}
    outputs = {"OUTPUT": TensorInfo("OUTPUT", (256,), "float32")}
    labels = {"OUTPUT": [f"byte {value}" for value in range(256)]}
    max_batch = 8

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        files = [np.frombuffer(row[0], np.uint8) for row in inputs["INPUT"]]
        counts = [np.bincount(file, minlength=256) for file in files]
        return {"OUTPUT": np.array(counts, np.float32)}
