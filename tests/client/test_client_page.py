"""The examples of docs/client.md work."""

from __future__ import annotations

import asyncio
import re
import uuid
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest

import farm
from farm.client import Client
from farm.errors import FarmError
from tests.support.coroutines import LIMIT_S
from tests.support.dispatcher_farm import Served
from tests.support.shown_blocks import text_of

PAGE = text_of("docs/client.md")
SHOWN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def target(served: Served) -> Path:
    """The page's examples run over one line; other tests have both."""
    return served.folder


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    """Return the names that the page's examples use without defining them."""
    import emcee  # it loads scipy, which takes a second

    rng = np.random.default_rng(1)
    x = np.array([1.0, 2.0])
    return {
        "farm": farm,
        "emcee": emcee,
        "model": client.model("plane"),
        "x": x,
        "sens": x,
        "vec": x,
        "X": rng.standard_normal((20, 2)),
        "points": [x, "no point", 3.0 * x],
        "data": x,
        "noise": 1.0,
        "log_prior": lambda theta: 0.0,
        "start": rng.standard_normal((32, 2)),
    }


def run(number: int, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(SHOWN[number], f"docs/client.md, block {number}", "exec"), names)
    return names


def test_the_first_call(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CONNECTION", str(served.folder))
    run(0, {})
    assert capsys.readouterr().out == "[25000.]\n"


def test_one_point(names: dict[str, Any]) -> None:
    found = run(1, names)
    assert [found[k].tolist() for k in "ygvh"] == [[2.0, 4.0], [2.0, 4.0], [2.0, 4.0], [0.0, 0.0]]


def test_many_points(names: dict[str, Any]) -> None:
    names["points"] = list(names["X"])
    found = run(2, names)
    assert np.array_equal(found["Y"], 2.0 * found["X"])
    assert found["y"].shape == (2,)
    assert found["future"].result(LIMIT_S).tolist() == [2.0, 4.0]


def test_errors_in_place_of_outputs(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(3, names)
    assert capsys.readouterr().out.startswith("1 InvalidInput input 'x'")


def test_derivatives_at_many_points(client: Client) -> None:
    x, sens, vec = np.random.default_rng(1).standard_normal((3, 20, 4))
    sens = sens[:, :1]
    names = {"model": client.model("misfit"), "X": x, "points": list(x)}
    found = run(4, names | {"S": sens, "V": vec, "sens": [3.0]})
    gradients = found["model"].map(x, operation="gradient", sens=sens)
    assert np.array_equal(gradients, sens * x)
    assert np.allclose(found["Y"], 0.5 * (x**2).sum(axis=1, keepdims=True), rtol=1e-14)
    assert np.array_equal(found["G"], x)
    assert np.array_equal(found["g"], x[-1])
    assert np.array_equal(found["y"], found["Y"][-1])
    assert np.array_equal(found["H"], 3.0 * vec)


def test_asyncio(names: dict[str, Any]) -> None:
    names["points"] = list(names["X"])
    lines = SHOWN[5].replace("...", "outputs.append(y)")
    program = (
        "async def main():\n    outputs = []\n" + indent(lines, "    ") + "    return outputs\n"
    )
    exec(compile(program, "docs/client.md, block 5", "exec"), names)
    assert np.array_equal(asyncio.run(names["main"]()), 2.0 * names["X"])


def test_emcee_both_ways(names: dict[str, Any]) -> None:
    chains = []
    for number in (6, 7):
        text = SHOWN[number].replace("1000", "10")
        assert "EnsembleSampler(32, 2, log_probability" in text
        if number == 6:
            text += "sampler.run_mcmc(start, 10)\n"
        # Both chains are the same: the sampler draws from numpy's global state when created.
        np.random.seed(1)
        exec(compile(text, f"docs/client.md, block {number}", "exec"), names)
        chains.append(names["sampler"].get_chain())
    assert np.array_equal(*chains)


def test_chains_have_names_in_three_ways(
    served: Served, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_CONNECTION", str(served.folder))
    (block,) = (block for block in SHOWN if "farm.chain(" in block)
    run_name = f"{uuid.uuid4()} "
    block = block.replace('"chain ', f'"{run_name}')

    def run_chain(seed: int) -> int:
        for _ in range(seed):
            names["model"](names["x"])
        return seed

    names |= {"run_chain": run_chain, "seeds": [2, 3], "seed": 5}
    exec(compile(block, "docs/client.md, chains", "exec"), names)
    assert names["samples"] == 5
    with names["client"] as client:
        client.model("plane")(names["x"])
        rows = client.status()["chains"]
    done = [(row["chain"], row["done"]) for row in rows if run_name in str(row["chain"])]
    own = {(name.removeprefix(run_name), count) for name, count in done}
    assert {name for name, _ in own} <= {"0", "1", "2", "3"}
    assert ("3", 5) in own or ("3", 6) in own
    assert sum(count for _, count in own) == 2 + 3 + 5 + 1


def test_every_block_is_tested() -> None:
    assert len(SHOWN) == 10  # that with ArviZ in tests/samplers/test_arviz.py


def test_every_class_of_error_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    untold = (
        set(FarmError.kinds) - told - {"InvalidRequest"}
    )  # never raised for users of the client
    assert untold == set()
