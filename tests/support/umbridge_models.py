"""Models written for the official `umbridge` package, and its own server in a process.

`python tests/support/umbridge_models.py PORT` serves them.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import umbridge

Vectors = list[list[float]]
Config = dict[str, Any]


class Smooth(umbridge.Model):  # type: ignore[misc]  # umbridge is published without types
    """Two inputs, two outputs, all quadratic, so that central differences are exact."""

    def __init__(self, name: str = "smooth") -> None:
        super().__init__(name)

    def get_input_sizes(self, config: Config) -> list[int]:
        return [3, 2]

    def get_output_sizes(self, config: Config) -> list[int]:
        return [2, 1]

    def value(self, x: list[Any], config: Config) -> list[Any]:
        a, b = x
        scale = config.get("scale", 1.0)
        y = np.array([a[0] * b[0] + a[1] ** 2, scale * a[2] * b[1]])
        return [y, np.array([np.sum(a) * np.sum(b)])]

    def jacobian(self, out: int, wrt: int, x: list[Any], config: Config) -> Any:
        columns = []
        for i in range(len(x[wrt])):
            up, down = [v.copy() for v in x], [v.copy() for v in x]
            up[wrt][i] += 0.5
            down[wrt][i] -= 0.5
            columns.append(self.value(up, config)[out] - self.value(down, config)[out])
        return np.array(columns).T

    def __call__(self, parameters: Vectors, config: Config) -> Vectors:
        return [y.tolist() for y in self.value([np.array(v) for v in parameters], config)]

    def gradient(
        self, out_wrt: int, in_wrt: int, parameters: Vectors, sens: list[float], config: Config
    ) -> list[float]:
        x = [np.array(v) for v in parameters]
        return (self.jacobian(out_wrt, in_wrt, x, config).T @ sens).tolist()  # type: ignore[no-any-return]

    def apply_jacobian(
        self, out_wrt: int, in_wrt: int, parameters: Vectors, vec: list[float], config: Config
    ) -> list[float]:
        x = [np.array(v) for v in parameters]
        return (self.jacobian(out_wrt, in_wrt, x, config) @ vec).tolist()  # type: ignore[no-any-return]

    def apply_hessian(
        self,
        out_wrt: int,
        in_wrt1: int,
        in_wrt2: int,
        parameters: Vectors,
        sens: list[float],
        vec: list[float],
        config: Config,
    ) -> list[float]:
        half = 0.5 * np.array(vec)
        up, down = [np.array(v) for v in parameters], [np.array(v) for v in parameters]
        up[in_wrt2] += half
        down[in_wrt2] -= half
        change = self.jacobian(out_wrt, in_wrt1, up, config) - self.jacobian(
            out_wrt, in_wrt1, down, config
        )
        return (change.T @ sens).tolist()  # type: ignore[no-any-return]

    def supports_evaluate(self) -> bool:
        return True

    def supports_gradient(self) -> bool:
        return True

    def supports_apply_jacobian(self) -> bool:
        return True

    def supports_apply_hessian(self) -> bool:
        return True


class Odd(umbridge.Model):  # type: ignore[misc]  # umbridge is published without types
    """One number in, one out; config {"give": ...} selects an unusual answer."""

    def __init__(self) -> None:
        super().__init__("odd")

    def get_input_sizes(self, config: Config) -> list[int]:
        return [int(config.get("size", 1))]

    def get_output_sizes(self, config: Config) -> list[int]:
        return [3] if config.get("give") == "nonfinite" else [1]

    def __call__(self, parameters: Vectors, config: Config) -> Any:
        give = config.get("give", "square")
        if give == "raise":
            raise RuntimeError("the mesh is empty")
        if give == "nonfinite":
            return [[math.nan, math.inf, -math.inf]]
        if give == "numpy":
            return [[np.float64(parameters[0][0])]]
        return {"none": [[None]], "long": [[1.0, 2.0]], "square": [[parameters[0][0] ** 2]]}[give]

    def supports_evaluate(self) -> bool:
        return True


class Echo(umbridge.Model):  # type: ignore[misc]  # umbridge is published without types
    """Returns its input: as many numbers as config {"size": n} says."""

    def __init__(self) -> None:
        super().__init__("echo")

    def get_input_sizes(self, config: Config) -> list[int]:
        return [int(config.get("size", 1))]

    def get_output_sizes(self, config: Config) -> list[int]:
        return self.get_input_sizes(config)

    def __call__(self, parameters: Vectors, config: Config) -> Vectors:
        return parameters

    def supports_evaluate(self) -> bool:
        return True


RETURNED = (
    "1234", "1234.0", "None", "True", "'text'", "b'bytes'", "{}", "{'out0': [1.0]}", "nan",
    "[]", "[[]]", "[1.0]", "[1.0, 2.0]", "[None]", "[True]", "['1.0']", "[[1.0]]", "[[1]]",
    "[[1.0, 2.0]]", "[[1.0], [2.0]]", "[[1.0, 2.0], [3.0]]", "[[1.0, 2.0, 3.0]]", "[[[1.0]]]",
    "[[[1.0, 2.0]]]", "[[None]]", "[[True]]", "[[True, 2.0]]", "[['1.0']]", "[[nan]]", "[[-inf]]",
    "(1.0,)", "([1.0],)", "([1.0, 2.0],)", "[(1.0,)]", "[(1.0, 2.0)]", "np.float64(1)",
    "[np.float64(1)]", "[[np.float64(1)]]", "[[np.int64(1)]]", "[[np.bool_(True)]]",
    "np.array(1.0)", "np.array([1.0])", "np.array([[1.0]])", "np.ones((2, 2))", "np.ones((1, 2))",
    "[np.array([1.0])]", "[np.array([1.0, 2.0])]", "[[np.array(1.0)]]", "[[np.array([1.0])]]",
    "[[1j]]", "[{1.0}]", "[[10**400]]",
)  # fmt: skip
"""Values that a model may return, as Python expressions."""


class Returns(umbridge.Model):  # type: ignore[misc]  # umbridge is published without types
    """Returns the value of `expression` in the config; its outputs have the sizes in `sizes`."""

    def __init__(self) -> None:
        super().__init__("returns")

    def get_input_sizes(self, config: dict[str, Any]) -> list[int]:
        return [1]

    def get_output_sizes(self, config: dict[str, Any]) -> list[int]:
        return list(config.get("sizes", [1]))

    def __call__(self, parameters: Any, config: dict[str, Any]) -> Any:
        names = {"np": np, "nan": float("nan"), "inf": float("inf")}
        return eval(config["expression"], names)

    def gradient(self, o: int, i: int, parameters: Any, sens: Any, config: dict[str, Any]) -> Any:
        return self(parameters, config)

    def supports_evaluate(self) -> bool:
        return True

    def supports_gradient(self) -> bool:
        return True


@contextmanager
def official_server(log: Path, *, returns: bool = False) -> Iterator[str]:
    """Run `umbridge.serve_models` with the models above in a process; yield its URL.

    returns: whether `Returns` is one of them.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = Path(__file__).parents[2]
    command = [sys.executable, __file__, str(port), *(["returns"] if returns else [])]
    with (
        log.open("w") as output,
        subprocess.Popen(command, cwd=root, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_until_listening(port, process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the official server did not start: {log.read_text()}")


if __name__ == "__main__":
    served = [Smooth(), Odd(), *(Returns() for _ in sys.argv[2:])]
    umbridge.serve_models(served, int(sys.argv[1]))
