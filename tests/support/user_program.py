"""What a user writes, for type checkers only: tests/test_typing.py checks it as a user's file."""

from pathlib import Path
from typing import Annotated, Any, assert_type

import numpy as np
import numpy.typing as npt

import farm

Array = npt.NDArray[np.float64]


class Beam(farm.Model):
    inputs = {"load": 1, "thickness": 1}
    outputs = {"deflection": 1}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        return inputs["load"] / inputs[1]


@farm.model(inputs={"x": 2}, outputs={"y": 1})
def forward(x: Array) -> Array:
    return x[:1]


def tip(load: float, v: Annotated[Array, 3]) -> float:
    return load * float(v[0])


def program() -> None:
    with farm.serve(tip, Beam, forward, "beam.py", Path("x.py"), workers=4) as client:
        assert_type(client, farm.Client)
        model = client.model("tip")
        assert_type(model, farm.RemoteModel)
        for value in model.map([1.0, 2.0]):
            print(value)
        y: Array = model(3.0)
        print(y)
        sweep = farm.sweep(model, {"load": (0, 1)}, n=4, out="a.h5")

    sweep = farm.sweep(tip, {"load": farm.log(1, 10), "v": 3.0}, n=8, out=Path("a.h5"))
    assert_type(sweep, farm.Sweep)
    for point in sweep.as_completed():
        assert_type(point.ok, bool)
        print(point.outputs["tip"].shape)
    data = farm.load_xarray("a.h5")
    print(data.sizes)
    print(farm.load_pandas(Path("a.h5")).tip)
    failures = farm.load_failures("a.h5")
    assert_type(failures, list[dict[str, Any]])
    assert_type(farm.load_progress("a.h5").done, int)
    try:
        farm.connect("farm-run", wait=3)
    except farm.FarmError as error:
        print(error.message)
    except farm.SweepError as error:
        print(error)
    with farm.chain("chain 1"), farm.Executor(4) as pool:
        assert_type(pool.submit(tip, 3.0, np.ones(3)).result(), float)
