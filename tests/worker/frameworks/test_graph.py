"""Detection of a graph's batch axis, its trial runs, and messages if there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from farm.call import Array, TensorInfo
from farm.model import Inputs
from farm.worker.frameworks.graph import GraphModel, Port, close, made_up, share_first_axis

X = Port("x", ("n", 3), "float64")
Y = Port("y", ("n", 3), "float64")


class Graph(GraphModel):
    """A graph that is a function of one array."""

    name = "graph"

    def __init__(
        self,
        function: Callable[[Array], Array],
        inputs: Sequence[Port] = (X,),
        outputs: Sequence[Port] = (Y,),
        max_batch: int | None = None,
    ) -> None:
        self.function = function
        self.sizes: list[int] = []
        self.declare(inputs, outputs, max_batch)
        self.sizes.clear()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        self.sizes.append(len(arrays[0]))
        return [self.function(arrays[0])]


def test_a_batch_axis_is_taken_off_the_shapes() -> None:
    graph = Graph(np.sin)
    assert (graph.batched, graph.max_batch) == (True, 64)
    assert graph.inputs == {"x": TensorInfo("x", (3,))}
    assert graph.outputs == {"y": TensorInfo("y", (3,))}


def test_with_max_batch_1_the_axis_is_put_on_and_taken_off() -> None:
    graph = Graph(np.sin, max_batch=1)
    x = np.arange(3.0)
    found = graph.evaluate(Inputs(x=x), {})
    assert graph.sizes == [1]
    np.testing.assert_array_equal(found["y"], np.sin(x))


@pytest.mark.parametrize(
    ("sizes_in", "sizes_out", "shared"),
    [
        ([("n", 3)], [("n",)], True),
        ([("", 3), ("", 2)], [("",)], True),
        ([("n", 3), ("", 2)], [("m",)], True),
        ([("n", 3), ("m", 3)], [("n", 3)], False),
        ([("n", 3), (3,)], [("n", 3)], False),
        ([("n", 3)], [("n", 3), ()], False),
        ([("n", 3)], [(1, 3)], False),
        ([(3, "n")], [(3, "n")], False),
        ([], [("n",)], False),
    ],
)
def test_the_first_axis_is_shared_when_all_tensors_have_it(
    sizes_in: list[tuple[int | str, ...]], sizes_out: list[tuple[int | str, ...]], shared: bool
) -> None:
    inputs = [Port(f"x{i}", sizes, "float64") for i, sizes in enumerate(sizes_in)]
    outputs = [Port(f"y{i}", sizes, "float64") for i, sizes in enumerate(sizes_out)]
    assert share_first_axis(inputs, outputs) is shared


@pytest.mark.parametrize(
    "mixing",
    [
        lambda x: x - x.mean(axis=0),
        lambda x: x[::-1] * np.arange(1, len(x) + 1)[:, None],
        lambda x: x[:1],  # another number of rows
    ],
)
def test_rows_that_touch_one_another_are_data(mixing: Callable[[Array], Array]) -> None:
    graph = Graph(mixing)
    assert (graph.batched, graph.max_batch) == (False, 1)
    assert graph.inputs == {"x": TensorInfo("x", (-1, 3))}
    with pytest.raises(ValueError, match="max_batch is 4, but output 'y' of a row depends on"):
        Graph(mixing, max_batch=4)


def test_a_size_that_never_varies_cannot_be_a_batch() -> None:
    fixed = [Port("x", (2, 3), "float64")], [Port("y", (2, 3), "float64")]
    assert Graph(np.sin, *fixed).max_batch == 1
    with pytest.raises(ValueError, match="max_batch is 4, but its tensors share no first axis"):
        Graph(np.sin, *fixed, max_batch=4)


def test_an_output_of_another_shape_than_declared() -> None:
    with pytest.raises(ValueError, match=r"output 'y' has shape \(1, 2\), declared is \('n', 3\)"):
        Graph(lambda x: x[:, :2])


def test_a_max_batch_below_one() -> None:
    with pytest.raises(ValueError, match="max_batch is 0; expected 1 or more"):
        Graph(np.sin, max_batch=0)


def test_inputs_that_cannot_be_made_up_do_not_keep_a_model_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def choosy(x: Array) -> Array:
        if (x < 10).any():
            raise ValueError("x is below\n10")
        return x

    graph = Graph(choosy)
    assert graph.max_batch == 64
    assert "graph is not warmed up, as it rejects made-up inputs: x is below 10" in caplog.text


def test_made_up_inputs_fit_and_are_always_the_same() -> None:
    ports = [
        Port("a", ("n", "k", 3), "float32"),
        Port("b", ("n",), "int8"),
        Port("c", (), "bool"),
        Port("d", (4,), "bytes"),
    ]
    arrays = made_up(ports, rows=5)
    assert [(x.shape, str(x.dtype)) for x in arrays] == [
        ((5, 2, 3), "float32"),
        ((5,), "int8"),
        ((), "bool"),
        ((4,), "object"),
    ]
    assert len({x.tobytes() for x in arrays[0]}) == 5, "rows differ"
    again = made_up(ports, rows=5)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, again, strict=True))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array([1, 1e-9], np.float32), np.array([1 + 1e-6, 2e-9], np.float32), True),
        (np.array([1], np.float32), np.array([1.01], np.float32), False),
        (np.array([1], np.float64), np.array([1 + 1e-6], np.float64), False),
        (np.array([1], np.float16), np.array([1.01], np.float16), True),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), True),
        (np.array([1]), np.array([2]), False),
        (np.array([b"a"], object), np.array([b"a"], object), True),
    ],
)
def test_close_is_up_to_rounding(one: Array, other: Array, same: bool) -> None:
    assert close(one, other) is same
