"""KubeMo's own server with a model: `python tests/support/kubemo_server.py NAME [WHERE]`.

WHERE: a port of loopback, or the path of a socket file.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubemo
import numpy as np

ROOT = Path(__file__).parents[2]
Tensors = tuple[Any, ...]


class Numbers(kubemo.Inference):  # type: ignore[misc]  # published without types
    """Lists of numbers in and out; `forward` defines which."""

    def preprocess(self, inputs: Tensors) -> Tensors:
        return tuple(np.array(x.decode(), dtype=float) for x in inputs)

    def concat(self, batch: tuple[Tensors, ...]) -> Tensors:
        return tuple(np.stack(column) for column in zip(*batch, strict=True))

    def forward(self, inputs: Tensors) -> Tensors:
        return (inputs[0] * 2,)

    def postprocess(self, outputs: Tensors) -> Tensors:
        return tuple(kubemo.Json(y) for y in outputs)


class SumProduct(Numbers):
    """Two inputs, two outputs."""

    def forward(self, inputs: Tensors) -> Tensors:
        a, b = inputs
        return a + b, a * b


class Parts(Numbers):
    """One input, two outputs: the server counts them wrong."""

    def forward(self, inputs: Tensors) -> Tensors:
        return inputs[0] + 1, inputs[0] * 10


class Upper(Numbers):
    """Texts in upper case."""

    def preprocess(self, inputs: Tensors) -> Tensors:
        return tuple(x.decode() for x in inputs)

    def concat(self, batch: tuple[Tensors, ...]) -> Tensors:
        return tuple(zip(*batch, strict=True))

    def forward(self, inputs: Tensors) -> Tensors:
        return ([text.upper() for text in inputs[0]],)

    def postprocess(self, outputs: Tensors) -> Tensors:
        return tuple(kubemo.Text(text) for text in outputs)


class ImageSize(Upper):
    """Width and height of an image, as a text."""

    def forward(self, inputs: Tensors) -> Tensors:
        return ([f"{image.width} x {image.height}" for image in inputs[0]],)


class Fails(Numbers):
    """A model that fails in every call."""

    def forward(self, inputs: Tensors) -> Tensors:
        raise RuntimeError("as it should")


class Slow(Upper):
    """Texts in upper case, after a delay."""

    def forward(self, inputs: Tensors) -> Tensors:
        time.sleep(0.2)
        return super().forward(inputs)


MODELS = {
    "double": Numbers,
    "sum_product": SumProduct,
    "parts": Parts,
    "upper": Upper,
    "slow": Slow,
    "image_size": ImageSize,
    "fails": Fails,
}


@contextlib.contextmanager
def kubemo_serving(model: str, where: str = "0") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the server in a process; yield its port or path, and the process."""
    command = [sys.executable, __file__, model, where]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


def main(model: str, where: str = "0") -> None:
    tcp = where.isdecimal()
    address: Any = ("127.0.0.1", int(where)) if tcp else where
    server = kubemo.Server("tcp" if tcp else "unix", address)
    server.handle(kubemo.InferenceHandler(MODELS[model]()))
    print(server.socket.getsockname()[1] if tcp else where, flush=True)
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
