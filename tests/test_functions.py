"""Functions as models: `@farm.model`, and functions whose annotations or callers give sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest

import farm
from farm.call import TensorInfo
from farm.errors import InvalidInput
from farm.functions import plain_function, served_function
from farm.model import info_of

Numbers = np.ndarray[Any, Any]


def decay(
    rate: float,
    times: Annotated[Numbers, 3],
    grid: Annotated[Numbers, (2, 2)],
    steps: int,
    exact: bool,
    method: str = "euler",
) -> Annotated[Numbers, TensorInfo("", (3,), "float32")]:
    """Decays."""
    assert (type(rate), type(steps), type(exact)) == (float, int, bool)
    value: Numbers = np.exp(-rate * times) * steps * (len(method) if exact else 1) + grid[0, 0]
    return value


def test_a_function_takes_its_inputs_by_name_and_the_config_if_it_asks() -> None:
    @farm.model(inputs={"x": 2, "y": 1}, outputs={"z": 2}, max_batch=4)
    def shifted(y: Any, x: Any, config: Any) -> Any:
        """Moves."""
        return x + y * config.get("times", 1)

    info = info_of(shifted, {})
    assert (info.name, info.description, info.max_batch) == ("shifted", "Moves.", 4)
    inputs = farm.Inputs(x=np.array([1.0, 2.0]), y=np.array([10.0]))
    np.testing.assert_array_equal(shifted.evaluate(inputs, {"times": 2}), [21.0, 22.0])
    assert shifted(1, 2, {}) == 3, "the decorated function can be called as before"


def test_a_stateful_function_gets_the_sequence() -> None:
    @farm.model(inputs={"x": 1}, outputs={"y": 1}, stateful=True)
    def total(x: Any, sequence: Any, config: Any) -> Any:
        sequence["total"] = sequence.get("total", 0.0) + x * config.get("times", 1)
        return sequence["total"]

    @farm.model(inputs={"x": 1}, outputs={"y": 1}, stateful=True)
    def start(x: Any, sequence: Any) -> Any:
        return sequence.start

    assert info_of(total, {}).sequences is not None
    inputs, state = farm.Inputs(x=np.array([2.0])), farm.Sequence("a")
    assert total.evaluate(inputs, {"times": 3}, state) == 6.0
    assert total.evaluate(inputs, {}, state) == 8.0
    assert start.evaluate(inputs, {}, state)


def test_a_stateful_function_needs_the_argument_for_its_state() -> None:
    with pytest.raises(TypeError, match="name its arguments after the inputs"):
        farm.model(inputs={"x": 1}, outputs={"y": 1}, stateful=True)(lambda x: x)
    with pytest.raises(TypeError, match="has an input 'sequence'"):
        farm.model(inputs={"sequence": 1}, outputs={"y": 1}, stateful=True)(lambda sequence: 0)


@pytest.mark.parametrize("inputs", [{"x": 1}, {"x": 1, "y": 1, "z": 1}, {"x": 1, "other": 1}])
def test_a_function_whose_arguments_are_not_its_inputs(inputs: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="name its arguments after the inputs"):
        farm.model(inputs=inputs, outputs={"z": 1})(lambda x, y: x)


def test_annotations_give_sizes() -> None:
    model = served_function(decay)
    info = info_of(model, {})
    assert (info.name, info.description) == ("decay", "Decays.")
    assert [(t.name, t.shape, t.dtype) for t in info.inputs] == [
        ("rate", (), "float64"),
        ("times", (3,), "float64"),
        ("grid", (2, 2), "float64"),
        ("steps", (), "int64"),
        ("exact", (), "bool"),
    ]
    assert info.outputs == (TensorInfo("decay", (3,), "float32"),)


def test_single_numbers_are_those_of_python_and_the_config_gives_the_other_arguments() -> None:
    model = served_function(decay)
    inputs = farm.Inputs(
        rate=np.array(0.0),
        times=np.ones(3),
        grid=np.zeros((2, 2)),
        steps=np.array(2),
        exact=np.array(True),
    )
    assert model.evaluate(inputs, {}).tolist() == [10.0] * 3
    assert model.evaluate(inputs, {"method": "rk", "other": 1}).tolist() == [4.0] * 3
    assert model.takes("rate")
    assert model.takes("method")
    assert not model.takes("other")


def test_the_config_reaches_the_argument_of_that_name() -> None:
    def f(x: float, config: Any) -> float:
        return x * float(config["times"])

    model = served_function(f)
    assert list(model.inputs) == ["x"]
    assert model.evaluate(farm.Inputs(x=np.array(3.0)), {"times": 2}) == 6.0
    assert model.takes("anything")


def test_sizes_may_come_from_outside() -> None:
    def f(x, n=2, **more):  # type: ignore[no-untyped-def]  # that is the test
        return x

    x, n, z = TensorInfo("x", (2,)), TensorInfo("n", ()), TensorInfo("z", ())
    assert dict(plain_function(f, {"x": x}).inputs) == {"x": x}
    assert dict(plain_function(f, {"x": x, "n": n, "z": z}).inputs) == {"x": x, "n": n, "z": z}
    assert dict(plain_function(f, {}, {"x"}).inputs) == {}
    assert plain_function(f, {"x": x}).outputs == {}


@pytest.mark.parametrize(
    ("value", "outputs"),
    [
        (1, {"f": ()}),
        (np.float32(1), {"f": ()}),
        ([[1, 2]], {"f": (1, 2)}),
        ({"a": 1.0, "b": np.zeros(3)}, {"a": (), "b": (3,)}),
    ],
)
def test_a_value_shows_the_outputs(value: Any, outputs: dict[str, tuple[int, ...]]) -> None:
    def f() -> Any:
        return value

    assert plain_function(f).outputs_of(value) == outputs


@pytest.mark.parametrize("value", [None, "text", {"a": None}, 1j])
def test_a_value_that_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match="expected numbers"):
        plain_function(lambda: 0).outputs_of(value)


def test_what_has_no_size_is_named_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"argument 'x' of 'function' has no size.*annotate it"):
        served_function(lambda x: x)

    def f(x: float) -> Any:
        return x

    with pytest.raises(TypeError, match="the value of 'f' has no size"):
        served_function(f)


class Scaled:
    def __call__(self, x: float, factor: float = 2.0) -> float:
        return x * factor


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(Scaled(), "Scaled", 6.0), (functools.partial(Scaled(), factor=5.0), "Scaled", 15.0)],
)
def test_objects_and_partial_functions(function: Any, name: str, value: float) -> None:
    model = plain_function(function)
    assert (model.name, list(model.inputs)) == (name, ["x"])
    assert model.evaluate(farm.Inputs(x=np.array(3.0)), {}) == value


async def coroutine(x: float) -> float:
    return x


def generator(x: float) -> Iterator[float]:
    yield x


def by_position(a: float, b: float, /) -> float:
    return a + b


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (Scaled, "'Scaled' is a class; expected a function or an object, such as Scaled()"),
        (Scaled.__call__, "'__call__' is a method of a class; expected that of an object"),
        (coroutine, "'coroutine' is a coroutine function; expected one that returns its value"),
        (generator, "'generator' is a generator function; expected one that returns its value"),
        (by_position, "takes a, b by position, not by name; wrap it, as lambda a, b: by_position"),
        (np.sin, "'sin' takes x by position, not by name; wrap it, as lambda x: sin(x)"),
        (math.hypot, "'hypot' is a function without named arguments"),
    ],
)
def test_what_takes_no_named_arguments_or_gives_no_value(function: Any, complaint: str) -> None:
    with pytest.raises(TypeError) as caught:
        plain_function(function)
    assert complaint in str(caught.value)


def test_an_output_has_a_text_as_its_name() -> None:
    with pytest.raises(TypeError, match="an output is called 1; expected a text"):
        plain_function(lambda: 0).outputs_of({1: 2.0})


def test_a_decorated_function_takes_defaults_from_the_config_as_a_plain_one_does() -> None:
    def plain(x: float, nodes: int = 200) -> float:
        return x + nodes

    decorated = farm.model(inputs={"x": ()}, outputs={"y": ()})(plain)
    for model in (served_function(plain), decorated):
        inputs = farm.Inputs(x=np.array(1.0))
        assert model.evaluate(inputs, {}) == 201.0
        assert model.evaluate(inputs, {"nodes": 3}) == 4.0
        info_of(model, {"nodes": 3})
        with pytest.raises(InvalidInput, match=r"the key 'nodez', which .*; its keys are: nodes"):
            info_of(model, {"nodez": 3})


def test_a_function_that_takes_the_config_knows_its_keys_itself() -> None:
    def plain(x: float, config: Any, nodes: int = 2) -> float:
        return x

    for model in (
        served_function(plain),
        farm.model(inputs={"x": 1}, outputs={"y": 1})(plain),
    ):
        info_of(model, {"anything": 1})


def test_the_decorator_without_parentheses_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r'put @farm.model\(inputs=."x": 1.*above `def f`'):

        @farm.model  # type: ignore[arg-type]  # that is the mistake
        def f(x: Any) -> Any:
            return x

    with pytest.raises(TypeError, match=r"put @farm.model\(inputs="):
        farm.model(inputs={"x": 1})
