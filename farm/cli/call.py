"""`farm call`: evaluate a model or a derivative once and print the result."""

from __future__ import annotations

import json
import math
import re
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
import numpy as np

from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Result,
    canonical_config,
)
from farm.cli.options import json_option, target_option
from farm.client import Client, connect
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    InvalidOutput,
    ModelFailed,
    ModelNotFound,
    Unavailable,
    error_named,
)
from farm.expression import number
from farm.machine.daemon_pool import aside
from farm.wording import counted

ASK_AGAIN_S = 0.5
"""Seconds between two questions to a farm that waits for its first workers."""

EXAMPLES = """\b
Examples:
  farm call 0.1,0.2                       the only model of the farm in ./farm-run
  farm call E=1,2,3 load=5                inputs by name
  farm call --to http://node3:4242 --model beam 1,2,3 --config '{"mesh": 2}'
  farm call 0.1,0.2 --gradient --sens 1,0
  farm call 0.1,0.2 --apply-jacobian --vec 1,0 --json
  farm call @point.json                   inputs from a file: [[...], [...]] or {"name": [...]}
"""


@click.command(epilog=EXAMPLES)
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@target_option
@click.option("--model", "model", help="Name of the model; optional if there is only one.")
@click.option(
    "--config", default=EMPTY_CONFIG, metavar="JSON", help="Config of the model, as a JSON object."
)
@click.option("--gradient", "operation", flag_value="gradient", help="Compute J^T sens.")
@click.option("--apply-jacobian", "operation", flag_value="apply_jacobian", help="Compute J vec.")
@click.option(
    "--apply-hessian",
    "operation",
    flag_value="apply_hessian",
    help="Compute the derivative of J^T sens along vec.",
)
@click.option(
    "--value-and-gradient",
    "operation",
    flag_value="value_and_gradient",
    help="Compute the outputs, and J^T sens.",
)
@click.option("--out-wrt", default=0, help="Index of the output to differentiate, from 0.")
@click.option("--in-wrt", default=0, help="Index of the input to differentiate by, from 0.")
@click.option("--in-wrt2", default=0, help="With --apply-hessian: index of the input of --vec.")
@click.option("--sens", metavar="VECTOR", help="Weights of the output's entries, like 1,0,0.")
@click.option("--vec", metavar="VECTOR", help="Direction in the input's space, like 1,0,0.")
@click.option("--timeout", type=float, metavar="SECONDS", help="Longest time to wait.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Patience with a farm that does not answer, also at the first contact.  [default: 60 s, "
    "but none at the first contact]",
)
@json_option("Print the result as a JSON object.")
def call(
    inputs: tuple[str, ...],
    target: str | None,
    model: str | None,
    config: str,
    operation: str | None,
    out_wrt: int,
    in_wrt: int,
    in_wrt2: int,
    sens: str | None,
    vec: str | None,
    timeout: float | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Call a model once and print the result.

    Pass one INPUT for each input of the model: vectors in the model's order, like 1,2,3, or by
    name, like NAME=1,2,3.
    """
    canonical = _canonical(config)
    derivative = None
    if operation is not None:
        derivative = Derivative(out_wrt, in_wrt, in_wrt2, _vector(sens), _vector(vec))
    with connect(target, wait=wait) as client:
        if wait is not None:
            model = client.model(model).name  # waits for the farm's first worker
        else:
            await_model(client, model, limit_s=timeout or math.inf)
        info = _described(client, model, canonical)
        asked = Call(
            info.name,
            Operation(operation or Operation.EVALUATE),
            _inputs(inputs, info),
            canonical,
            derivative,
        )
        future = client.submit(asked, Hints(deadline_s=timeout))
        try:
            result = future.result(timeout=timeout)
        except TimeoutError:
            future.cancel()
            raise DeadlineExceeded(f"no answer within {timeout:g} s") from None
        except (ModelFailed, InvalidOutput) as error:
            raise _explained(error, info.name, target) from None
    click.echo(_as_json(result, info, asked) if as_json else _as_text(result, info, asked))


def _explained(error: FarmError, model: str, target: str | None) -> FarmError:
    """Return the error of a model with its name, the line that raised, and the way to the rest."""
    lines = re.findall(r'^  File "(.+)", line (\d+)', error.detail, re.MULTILINE)
    own = [place for place in lines if "/lib/python" not in place[0]] or lines
    where = " ({}:{})".format(*own[-1]) if own else ""
    to = "" if target is None else f" --to {target}"
    text = f"model {model!r} failed: {error.message}{where}; for more: farm failures{to}"
    return error_named(type(error).__name__, text)


def await_model(
    client: Client, name: str | None, *, limit_s: float = math.inf, patient: bool = False
) -> None:
    """Wait while the farm expects workers with the model, and print what these wait for.

    patient: also after the farm's own limit. Raises DeadlineExceeded after `limit_s` seconds, and
    FarmError if the farm does not answer or lets no call wait any longer.
    """
    said, until = "", time.monotonic() + limit_s
    come: Future[ModelInfo] | None = None
    while True:
        try:
            client.expect_models(name)
            return
        except Unavailable as error:
            if error.message != said:
                said = error.message
                click.echo(f"waiting: {said}", err=True)
        come = come or aside(client.describe, name or "")  # waits at the farm
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"no answer within {limit_s:g} s: {said}")
        try:
            come.result(min(ASK_AGAIN_S, left_s))
        except (TimeoutError, ModelNotFound):
            continue
        except Unavailable:
            if not patient:
                raise
            come = None


def _canonical(config: str) -> str:
    try:
        return canonical_config(json.loads(config))
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--config is {config!r}, not a JSON object: {error}") from None


def _described(client: Client, model: str | None, config: str) -> ModelInfo:
    name = only_model(client) if model is None else model
    return client.describe(name, json.loads(config))


def only_model(client: Client) -> str:
    """Return the name of the only model of a farm. Raises UsageError."""
    models = client.expect_models()
    if len(models) != 1:
        raise click.UsageError(f"specify --model; the farm has: {', '.join(models) or 'none'}")
    return models[0]


def _inputs(texts: tuple[str, ...], info: ModelInfo) -> tuple[Array, ...]:
    names = [tensor.name for tensor in info.inputs]
    if len(texts) == 1 and texts[0].startswith("@"):
        given = _from_file(Path(texts[0][1:]))
    elif texts and all("=" in text for text in texts):
        given = {name: _vector(text) for name, _, text in (t.partition("=") for t in texts)}
    else:
        given = [_vector(text) for text in texts]
    if isinstance(given, dict):
        if set(given) != set(names):
            raise click.UsageError(f"the inputs are {', '.join(names)}; got {', '.join(given)}")
        given = [given[name] for name in names]
    if len(given) != len(names):
        sizes = ", ".join(f"{t.name} ({t.size})" for t in info.inputs)
        raise click.UsageError(
            f"model {info.name!r} has {counted(len(names), 'input')}: {sizes}; got {len(given)}"
        )
    return tuple(np.asarray(vector, dtype=np.float64).reshape(-1) for vector in given)


def _from_file(path: Path) -> Any:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(given, dict):
            return {name: np.array(vector, dtype=np.float64) for name, vector in given.items()}
        return [np.array(vector, dtype=np.float64) for vector in given]
    except (OSError, ValueError, TypeError) as error:
        raise click.UsageError(f"inputs cannot be read from {path}: {error}") from None


def _vector(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return np.array([number(entry) for entry in text.split(",") if entry.strip()])
    except ValueError as error:
        if "://" in text:
            raise click.UsageError(f"{text!r} is not an input; a farm is named by --to") from None
        raise click.UsageError(f"{text!r} is not a vector like 1,2,3: {error}") from None


def _named_outputs(result: Result, info: ModelInfo, call: Call) -> list[tuple[str, Array]]:
    """Return the outputs, or the derivative, with their names and in their declared shapes."""
    declared = [(tensor.name, tensor.shape) for tensor in info.outputs]
    if (derivative := call.derivative) is not None:
        of = info.inputs[derivative.in_wrt]
        if call.operation is Operation.APPLY_JACOBIAN:
            of = info.outputs[derivative.out_wrt]
        if call.operation is Operation.VALUE_AND_GRADIENT:
            declared.append((Operation.GRADIENT.value, of.shape))
        else:
            declared = [(call.operation.value, of.shape)]
    shaped = []
    for (name, shape), array in zip(declared, result.outputs, strict=True):
        fits = -1 not in shape and array.size == math.prod(shape)
        shaped.append((name, array.reshape(shape) if fits else array))
    return shaped


def _as_json(result: Result, info: ModelInfo, call: Call) -> str:
    named = [(name, array.tolist()) for name, array in _named_outputs(result, info, call)]
    both = call.operation is Operation.VALUE_AND_GRADIENT
    beside = dict([named.pop()]) if both else {}  # an output may be called gradient, too
    return json.dumps(
        {
            "model": info.name,
            "operation": call.operation.value,
            "outputs": dict(named),
            **beside,
            "run_time_s": result.run_time_s,
            "queue_time_s": result.queue_time_s,
            "worker": result.worker,
            "copied": result.copied,
            "reused": result.reused,
        }
    )


def _as_text(result: Result, info: ModelInfo, call: Call) -> str:
    lines = [
        f"{name} = {np.array2string(array, max_line_width=100, threshold=60)}"
        for name, array in _named_outputs(result, info, call)
    ]
    where = f" on {result.worker}" if result.worker else ""
    return "\n".join([*lines, f"({info.name} ran {result.run_time_s:.4g} s{where})"])
