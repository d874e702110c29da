"""Served models as functions of torch tensors: autograd, torch.func, types, errors, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import functional
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import farm
from farm.call import Array
from farm.client import Client
from farm.errors import ModelFailed, UnsupportedFeature
from farm.model import Config, Inputs
from farm.ops.asking import Counts
from tests.ops.waves import MATRIX, waves_by

# torch's own forward mode loads parts of it that warn.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)

A = torch.tensor(MATRIX)
X = torch.tensor(np.random.default_rng(1).standard_normal((4, 5, 2)))
K = torch.tensor([1.7], dtype=torch.float64)


waves = partial(waves_by, torch.tanh, A)


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "vmap": lambda f: lambda x, k: vmap(f, (None, 0))(x, torch.stack([k, 2.0 * k])),
    "jacrev": lambda f: jacrev(f, (0, 1)),
    "jacfwd": lambda f: jacfwd(f, (0, 1)),
    "hessian": lambda f: hessian(f, (0, 1)),
    "reverse over reverse": lambda f: jacrev(jacrev(f, (0, 1)), (0, 1)),
    "reverse over forward": lambda f: jacrev(jacfwd(f, (0, 1)), (0, 1)),
    "vmap of jacrev": lambda f: lambda x, k: vmap(jacrev(f), (0, None))(torch.stack([x, -x]), k),
    "hvp": lambda f: lambda x, k: jvp(jacrev(lambda x: f(x, k)), (x,), (torch.cos(x),))[1],
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("out", ["sum", "y", ["y", "sum"]], ids=str)
def test_transformations_are_those_of_the_function(
    client: Client, out: str | list[str], transform: str
) -> None:
    op = farm.ops.torch_op(client.model("waves"), out=out)
    change = TRANSFORMS[transform]
    assert_same(change(op)(X[0, 0], K), change(waves(out))(X[0, 0], K))


@pytest.mark.parametrize("out", ["sum", "y", ["y", "sum"]], ids=str)
def test_gradcheck(client: Client, out: str | list[str]) -> None:
    op = farm.ops.torch_op(client.model("waves"), out=out)
    inputs = X[0, :2].clone().requires_grad_(), K.clone().requires_grad_()
    assert torch.autograd.gradcheck(op, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, inputs)


def test_products_of_the_functional_interface(client: Client) -> None:
    f = farm.ops.torch_op(client.model("waves"), out="sum")
    v = torch.tensor([0.3, -0.7], dtype=torch.float64)

    def served(x: Any) -> Any:
        return f(x, K)

    def expected(x: Any) -> Any:
        return waves("sum")(x, K)

    for product in (functional.hvp, functional.vhp, functional.jvp):
        assert_same(product(served, X[0, 0], v), product(expected, X[0, 0], v))


def test_jvp_of_the_functional_interface_needs_first_derivatives_only() -> None:
    class Squares(farm.Model):
        inputs, outputs = {"x": 2}, {"y": 2}

        def evaluate(self, inputs: Inputs, config: Config) -> Any:
            return inputs["x"] ** 2

        def gradient(
            self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
        ) -> Any:
            return 2.0 * inputs["x"] * sens

        def apply_jacobian(
            self, out_wrt: int, in_wrt: int, inputs: Inputs, vec: Array, config: Config
        ) -> Any:
            return 2.0 * inputs["x"] * vec

    x, v = X[0, 0], torch.tensor([0.3, -0.7], dtype=torch.float64)
    with farm.serve(Squares) as client:
        f = farm.ops.torch_op(client.model())
        assert_same(functional.jvp(f, x, v)[1], 2.0 * x * v)


def test_vmap_of_grad_is_one_request(client: Client, counted: Counter[str]) -> None:
    op = farm.ops.torch_op(client.model("density"))
    assert_same(vmap(grad(op))(X[0]), -X[0])
    assert op.counts == Counts(requests=1, calls=5, repeats=0)
    assert counted == {"density evaluate": 5, "density gradient": 5}
    assert_same(grad(lambda x: vmap(vmap(op))(x).sum())(X), -X)
    assert op.counts == Counts(requests=2, calls=20, repeats=10)


def test_backward_is_one_request(client: Client, counted: Counter[str]) -> None:
    op = farm.ops.torch_op(client.model("density"))
    x = X[0].clone().requires_grad_()
    (3.0 * op(x)).sum().backward()
    assert_same(x.grad, -3.0 * X[0])
    assert op.counts == Counts(requests=1, calls=5, repeats=0)
    with torch.no_grad():
        op(X[1])
    op(X[2])
    assert counted == {"density evaluate": 15, "density gradient": 5}


def test_only_inputs_with_derivatives_are_differentiated(
    client: Client, counted: Counter[str]
) -> None:
    x, k = X[0, 0].clone().requires_grad_(), K.clone().requires_grad_()
    farm.ops.torch_op(client.model("waves"), out="sum")(x, K).backward()
    assert counted == {"waves evaluate": 1, "waves gradient": 1}
    constant = farm.ops.torch_op(client.model("waves"), out="sum", wrt="x")(x, k)
    constant.backward()
    assert k.grad is None
    assert counted["waves gradient"] == 2


def test_optimisers_and_modules_use_it(client: Client) -> None:
    op = farm.ops.torch_op(client.model("density"))

    class Shifted(torch.nn.Module):  # type: ignore[misc]  # not read by mypy
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            return op(x + self.shift)

    module = Shifted()
    parameters = dict(module.named_parameters())
    found = grad(lambda p: functional_call(module, p, (X[0],)).sum())(parameters)
    assert_same(found["shift"], -(X[0] + 1.0).sum(0))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(30):
        optimiser.zero_grad()
        (-module(X[0])).mean().backward()
        optimiser.step()
    assert (module.shift + X[0].mean(0)).abs().max() < 0.1


def test_results_have_the_type_of_the_argument(client: Client) -> None:
    op = farm.ops.torch_op(client.model("waves"), out="sum")
    for dtype in (torch.float32, torch.bfloat16):
        x, k = X[0, 0].to(dtype).requires_grad_(), K.to(dtype)
        value = op(x, k)
        value.backward()
        assert (value.dtype, x.grad.dtype) == (dtype, dtype)
        exact = waves("sum")(x.detach().double(), k.double())
        assert value == exact.to(dtype), "computed in float64, rounded once"
    assert op(X[0, 0], K.float()).dtype == torch.float64
    assert op([1, 2], 1).dtype == torch.get_default_dtype()


def test_whole_numbers_are_inputs_without_derivatives(client: Client) -> None:
    op = farm.ops.torch_op(client.model("plain"))
    assert_same(op(X[0, 0], torch.tensor([3])), 3.0 * X[0, 0])


def test_a_failed_model_raises_its_own_error(client: Client) -> None:
    op = farm.ops.torch_op(client.model("density"))
    bad = X[0].clone()
    bad[3, 0] = 13.0
    for step in (op, vmap(op), vmap(grad(op)), lambda x: op(x.requires_grad_())):
        with pytest.raises(ModelFailed, match="thirteen is not for me") as caught:
            step(bad.clone())
        assert caught.value.__notes__[0] == "at point 3"
        assert "Traceback" in caught.value.detail


def test_an_error_in_the_backward_pass_comes_out_as_itself(client: Client) -> None:
    op = farm.ops.torch_op(client.model("plain"))
    x = X[0, 0].clone().requires_grad_()
    y = op(x, torch.tensor([3])).sum()
    with pytest.raises(UnsupportedFeature, match=r"reverse mode .* needs gradient"):
        y.backward()
    with pytest.raises(UnsupportedFeature, match="second derivatives need apply_hessian"):
        hessian(farm.ops.torch_op(client.model("density")))(X[0, 0])
    with pytest.raises(UnsupportedFeature, match="third derivatives"):
        jacrev(jacrev(jacrev(farm.ops.torch_op(client.model("waves"), out="sum"))))(X[0, 0], K)
