"""Operations of a model: derivatives, and values with gradients."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from farm.call import Array, Call, Derivative, Operation, Result
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from farm.model import Config, Inputs, Model
from farm.worker.runner import Outcome, Runner


def result(outcome: Outcome) -> Result:
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome


class Matrix(Model):
    """y = scale * (A : x) summed over rows, plus z; A is 2 x 3, so J^T sens = A * sens."""

    inputs = {"x": (2, 3), "z": 2}
    outputs = {"y": (2, 1)}
    A = np.arange(6.0).reshape(2, 3)

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return (self.A * inputs["x"]).sum(axis=1) + inputs["z"]

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        assert sens.shape == (2, 1)
        return self.A * sens if in_wrt == 0 else sens.ravel()

    def apply_jacobian(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, vec: Array, config: Config
    ) -> Any:
        assert vec.shape == ((2, 3) if in_wrt == 0 else (2,))
        return (self.A * vec).sum(axis=1) if in_wrt == 0 else vec

    def apply_hessian(
        self,
        out_wrt: int,
        in_wrt1: int,
        in_wrt2: int,
        inputs: Inputs,
        sens: Array,
        vec: Array,
        config: Config,
    ) -> Any:
        assert (sens.shape, vec.shape) == ((2, 1), (2, 3) if in_wrt2 == 0 else (2,))
        return [float(in_wrt1), float(in_wrt2)] + ([0.0] * 4 if in_wrt1 == 0 else [])


def derivative(
    operation: Operation,
    *,
    sens: Any = None,
    vec: Any = None,
    in_wrt: int = 0,
    in_wrt2: int = 0,
    model: Model | None = None,
) -> Outcome:
    def array(value: Any) -> Array | None:
        return None if value is None else np.asarray(value, dtype=float)

    wrt = Derivative(0, in_wrt, in_wrt2, array(sens), array(vec))
    call = Call("m", operation, (np.zeros(6), np.zeros(2)), derivative=wrt)
    return Runner({"m": model or Matrix()}).execute([call])[0]


@pytest.mark.parametrize(
    ("operation", "arguments", "found"),
    [
        (Operation.GRADIENT, {"sens": [1, 10]}, [0, 1, 2, 30, 40, 50]),
        (Operation.GRADIENT, {"sens": [1, 10], "in_wrt": 1}, [1, 10]),
        (Operation.APPLY_JACOBIAN, {"vec": [1] * 6}, [3, 12]),
        (Operation.APPLY_JACOBIAN, {"vec": [5, 6], "in_wrt": 1}, [5, 6]),
        (
            Operation.APPLY_HESSIAN,
            {"sens": [1, 1], "vec": [1, 1], "in_wrt2": 1},
            [0, 1, 0, 0, 0, 0],
        ),
        (Operation.APPLY_HESSIAN, {"sens": [1, 1], "vec": [1] * 6, "in_wrt": 1}, [1, 0]),
    ],
)
def test_a_derivative_is_flat_and_like_its_input_or_output(
    operation: Operation, arguments: dict[str, Any], found: list[float]
) -> None:
    """A Hessian action is like the first of its inputs."""
    np.testing.assert_array_equal(result(derivative(operation, **arguments)).outputs[0], found)


def test_a_derivative_of_the_wrong_length_is_the_models_fault() -> None:
    class Wrong(Matrix):
        def gradient(self, *args: Any) -> Any:
            return [1.0, 2.0]

    wrt = Derivative(0, 0, sens=np.ones(2))
    call = Call("m", Operation.GRADIENT, (np.zeros(6), np.zeros(2)), derivative=wrt)
    (outcome,) = Runner({"m": Wrong()}).execute([call])
    assert isinstance(outcome, InvalidOutput)
    assert outcome.message == "gradient of model 'm' has shape (2,), expected (2, 3)"


class Both(Matrix):
    """Has value_and_gradient, and returns from it what the test wants."""

    def __init__(self, returns: Any = None) -> None:
        self.returns = returns

    def value_and_gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        if self.returns is not None:
            return self.returns
        value = self.evaluate(inputs, config)
        return value, self.gradient(out_wrt, in_wrt, inputs, sens, config)


def test_value_and_gradient_are_the_outputs_and_the_flat_gradient() -> None:
    for model in (Both(), Matrix()):  # the latter without the method
        outcome = derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 10], model=model)
        value, gradient = result(outcome).outputs
        np.testing.assert_array_equal(value, [[0.0], [0.0]])
        np.testing.assert_array_equal(gradient, [0, 1, 2, 30, 40, 50])
        outcome = derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 10], in_wrt=1, model=model)
        np.testing.assert_array_equal(result(outcome).outputs[1], [1, 10])


def test_a_model_that_keeps_its_point_evaluates_before_it_differentiates() -> None:
    class Keeps(Matrix):
        keeps_point = True
        kept: Array | None = None

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            self.kept = inputs["x"]
            time.sleep(0.01)
            return super().evaluate(inputs, config)

        def gradient(
            self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
        ) -> Any:
            assert self.kept is not None, "evaluated first"
            time.sleep(0.01)
            return super().gradient(out_wrt, in_wrt, inputs, sens, config)

    outcome = derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 1], model=Keeps())
    assert result(outcome).run_time_s >= 0.02, "the time of both"


def test_a_model_with_batches_gives_the_value_of_one_point() -> None:
    class Batched(Model):
        inputs = {"x": 2}
        outputs = {"y": 1}
        max_batch = 4

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return inputs["x"].sum(axis=1, keepdims=True)

        def gradient(
            self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
        ) -> Any:
            return np.repeat(sens, 2)

    wrt = Derivative(0, 0, sens=np.array([3.0]))
    call = Call("m", Operation.VALUE_AND_GRADIENT, (np.array([1.0, 2.0]),), derivative=wrt)
    value, gradient = result(Runner({"m": Batched()}).execute([call])[0]).outputs
    assert (value.tolist(), gradient.tolist()) == ([3.0], [3.0, 3.0])


@pytest.mark.parametrize(
    ("returns", "text"),
    [
        (np.ones(2), "returned a ndarray; expected a pair (outputs, gradient)"),
        ([1, 2, 3], "returned a list of 3; expected a pair"),
        ((np.ones(3), np.ones(6)), "output 'y' of model 'm' has shape (3,), expected (2, 1)"),
        ((np.ones(2), np.ones(5)), "gradient of model 'm' has shape (5,), expected (2, 3)"),
        ((np.ones(2), "x"), "gradient of model 'm' is text, expected numbers"),
    ],
    ids=str,
)
def test_a_wrong_pair_is_the_models_fault(returns: Any, text: str) -> None:
    outcome = derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 1], model=Both(returns))
    assert isinstance(outcome, InvalidOutput)
    assert text in outcome.message


def test_the_pair_is_a_copy_of_what_the_model_keeps() -> None:
    kept = np.ones(2), np.ones(6)
    model = Both(kept)
    outcome = result(derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 1], model=model))
    kept[0][:], kept[1][:] = 0.0, 0.0
    assert [array.sum() for array in outcome.outputs] == [2.0, 6.0]


def test_arguments_that_do_not_fit_are_refused() -> None:
    wrong = derivative(Operation.VALUE_AND_GRADIENT, sens=[1], model=Both())
    assert isinstance(wrong, InvalidInput)
    assert "sens has length 1, expected 2" in wrong.message

    class Value(Model):
        inputs = {"x": 1}
        outputs = {"y": 1}

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return inputs["x"]

    wrt = Derivative(0, 0, sens=np.ones(1))
    call = Call("m", Operation.VALUE_AND_GRADIENT, (np.ones(1),), derivative=wrt)
    (outcome,) = Runner({"m": Value()}).execute([call])
    assert isinstance(outcome, UnsupportedFeature)
    assert outcome.message == "model 'm' does not offer value_and_gradient; it offers evaluate"


def test_the_traceback_of_a_model_begins_with_its_own_frames() -> None:
    class Fails(Matrix):
        def gradient(self, *args: Any) -> Any:
            raise ArithmeticError("no slope")

    outcome = derivative(Operation.VALUE_AND_GRADIENT, sens=[1, 1], model=Fails())
    assert isinstance(outcome, FarmError)
    assert "farm/worker" not in outcome.detail
    assert "in gradient" in outcome.detail
