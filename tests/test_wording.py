"""Errors in the words of Python or of the command line, and their short tracebacks."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.errors import Detail, ModelFailed, error_named
from farm.storage import lock
from farm.sweep.file.recovery import lock_of
from farm.wording import briefly, counted, on_command_line, worded
from tests.support.coroutines import LIMIT_S


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 workers"), (1, "1 worker"), (2, "2 workers")],
)
def test_a_noun_fits_its_number(number: int, words: str) -> None:
    assert counted(number, "worker") == words


def test_words_are_those_of_python_but_for_commands() -> None:
    assert worded("--overwrite", "overwrite=True") == "overwrite=True"
    found = []
    with on_command_line():
        thread = threading.Thread(target=lambda: found.append(worded("-o", "out=")))
        thread.start()
        thread.join()
        with on_command_line():
            pass
        assert worded("-o", "out=") == "-o"
    assert found == ["-o"]
    assert worded("-o", "out=") == "out="


def raise_deep(depth: int) -> None:
    if not depth:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ModelFailed("outer", detail=DETAIL) from inner
    raise_deep(depth - 1)


DETAIL = (
    'Traceback (most recent call last):\n  File "m.py", line 4, in f\n    x / 0\nError: outer\n'
)


def test_an_error_has_no_frames_below_the_function_and_no_cause() -> None:
    with pytest.raises(ModelFailed) as caught:
        briefly(ModelFailed)(raise_deep)(5)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][1:] == ["call"]
    shown = "".join(traceback.format_exception(caught.value))
    assert "KeyError" not in shown


def test_the_traceback_of_a_model_is_the_cause_of_its_error() -> None:
    @briefly(ModelFailed)
    def fail() -> None:
        raise error_named("ModelFailed", "outer", DETAIL)

    with pytest.raises(ModelFailed) as caught:
        fail()
    assert isinstance(caught.value.__cause__, Detail)
    assert DETAIL in str(caught.value.__cause__)
    assert error_named("ModelFailed", "outer").__cause__ is None


def test_other_errors_keep_all_of_it() -> None:
    with pytest.raises(ModelFailed) as caught:
        briefly(ValueError)(raise_deep)(5)
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 8
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_function_keeps_its_name_and_text() -> None:
    assert briefly(ValueError)(raise_deep).__name__ == "raise_deep"
    assert farm.sweep.__doc__ is not None


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def bad(x: Any) -> Any:
    raise ValueError("too large")


@pytest.fixture(scope="module")
def client() -> Iterator[farm.Client]:
    with farm.serve(bad) as client:
        yield client


def frames_of(error: BaseException) -> list[str]:
    assert error.__cause__ is None or isinstance(error.__cause__, Detail)
    assert error.__suppress_context__
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


def test_errors_of_a_farm_are_short_and_show_the_model(client: farm.Client, tmp_path: Path) -> None:
    model = client.model()
    for failing in (
        lambda: model(1.0),
        lambda: model.evaluate(1.0),
        lambda: model([1.0, 2.0]),
        lambda: model(1.0, 2.0),  # type: ignore[arg-type]  # this is the mistake
        lambda: client.model("good"),
        lambda: client.ask("nothing"),
        lambda: farm.sweep(model, {"x": (0, 1)}, n=4, out=tmp_path / "s.h5", show=False),
        lambda: farm.sweep(bad, {}, n=4, out=tmp_path / "s.h5", show=False),
        lambda: farm.connect(tmp_path / "nothing"),
        lambda: farm.load_pandas(tmp_path / "nothing"),
    ):
        with pytest.raises((farm.FarmError, farm.SweepError)) as caught:
            failing()
        assert frames_of(caught.value) == ["<lambda>", "call"]
    with pytest.raises(ModelFailed) as failed:
        model(1.0)
    assert 'raise ValueError("too large")' in str(failed.value.__cause__)
    assert str(failed.value.__cause__).count("File") == 1
    with pytest.raises(farm.FarmError, match=r"got float; several .* as model\(\[a, b\]\)"):
        model(1.0, 2.0)  # type: ignore[arg-type]  # this is the mistake
    failure = model.submit(1.0).exception(LIMIT_S)
    assert isinstance(failure, ModelFailed)
    assert 'raise ValueError("too large")' in str(failure.__cause__)
    assert failure.__traceback__ is None
    with pytest.raises(ModelFailed) as failed:
        list(model.map([1.0]))
    assert len(frames_of(failed.value)) <= 2
    assert failed.value.__notes__[0] == "at point 0"
    with pytest.raises(Exception, match="no file") as caught:
        farm.serve("nothing.py").__enter__()
    assert frames_of(caught.value) == ["__enter__", "serve"]


def test_a_sweep_says_what_to_do_in_python(tmp_path: Path) -> None:
    out = tmp_path / "s.h5"
    twice = farm.model(inputs={"x": 1}, outputs={"y": 1})(lambda x: 2 * x)

    def sweep(**more: Any) -> farm.Sweep:
        asked: dict[str, Any] = {"parameters": {"x": (0, 1)}, "n": 4, "seed": 7, **more}
        return farm.sweep(twice, out=out, show=False, **asked)

    sweep().wait()
    for more, remedy in (
        ({"seed": 8}, "replace it by overwrite=True, or give another out="),
        ({"resume": False}, "continue that sweep with resume=True"),
        ({"parameters": {}, "overwrite": True}, "give a range or a number for each"),
        ({"cost": "z", "overwrite": True}, "cost='z': no parameter 'z'"),
        ({"n": None, "design": "grid", "overwrite": True}, 'design="grid", n=10'),
        ({"seed_key": "x", "overwrite": True}, "seed_key 'x' is a parameter"),
    ):
        with pytest.raises(farm.SweepError) as caught:
            sweep(**more)
        assert remedy in str(caught.value)
        assert "--" not in str(caught.value)


def test_a_farm_says_what_to_do_in_python(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(farm.FarmError, match=r"cannot listen on .* port=0 picks a free one"),
            farm.serve(bad, port=port),
        ):
            pass


PACKAGE = str(Path(farm.__file__).parent)


def frames_of_farm(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if frame.filename.startswith(PACKAGE)]


def iterate(iterator: Any) -> None:
    for _ in iterator:
        pass


async def aiterate(iterator: Any) -> None:
    async for _ in iterator:
        pass


def test_every_way_to_ask_shows_one_line_of_farm(client: farm.Client) -> None:
    """The caller's own line, and at most one frame of farm below it."""

    def points() -> Any:
        yield 1.0

    model = client.model()
    ways: dict[str, Any] = {
        "map of an array": lambda: model.map(np.array([1.0, 2.0])),
        "map of a list": lambda: iterate(model.map([1.0, 2.0])),
        "map of a generator": lambda: iterate(model.map(points())),
        "map of a wrong point": lambda: iterate(model.map([[1.0, 2.0]])),
        "map of a wrong array": lambda: model.map(np.ones((2, 3))),
        "map of a derivative": lambda: model.map([1.0], operation="gradient"),
        "as_completed": lambda: iterate(model.as_completed([1.0])),
        "aevaluate": lambda: asyncio.run(model.aevaluate(1.0)),
        "aevaluate of a wrong point": lambda: asyncio.run(model.aevaluate([1.0, 2.0])),
        "amap": lambda: asyncio.run(aiterate(model.amap([1.0]))),
        "amap of a wrong point": lambda: asyncio.run(aiterate(model.amap([[1.0, 2.0]]))),
        "submit": lambda: model.submit(1.0).result(LIMIT_S),
        "submit of a wrong point": lambda: model.submit([1.0, 2.0]),
        "submit of a client": lambda: client.submit(model._values_for(None).call(1.0)).result(),
        "info": lambda: client.model("bad").describe({"a": {1}}),
        "gradient": lambda: model.gradient(0, 0, 1.0, [1.0]),
        "log": lambda: client.log("nobody"),
        "drain": lambda: client.drain("nobody"),
        "restart": lambda: client.restart("nobody"),
        "history": lambda: client.ask("history", since="yesterday"),
        "an executor": lambda: iterate(farm.Executor(1).map(model, [1.0])),
    }
    long = {}
    for name, way in ways.items():
        with pytest.raises((farm.FarmError, farm.SweepError)) as caught:
            way()
        assert isinstance(caught.value.__cause__, Detail | None), name
        assert caught.value.__suppress_context__ or caught.value.__context__ is None, name
        if len(frames := frames_of_farm(caught.value)) > 1:
            long[name] = frames
    assert long == {}


def test_a_fault_in_the_callers_own_points_keeps_their_line() -> None:
    def points() -> Any:
        yield 1.0
        raise KeyError("the caller's own")

    twice = farm.model(inputs={"x": 1}, outputs={"y": 1})(lambda x: 2 * x)
    with farm.serve(twice, workers=1) as client, pytest.raises(KeyError) as caught:
        list(client.model().map(points()))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "points"


def test_the_end_of_a_sweep_shows_one_line_of_farm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.h5"

    @farm.model(inputs={"x": 1}, outputs={"y": 1})
    def taken_over(x: Any) -> Any:
        lock_of(out).write_text('{"token": "x", "pid": 1, "host": "elsewhere"}')
        monkeypatch.setattr(lock, "BEAT_S", 0.0)
        return x

    def in_a_block(sweep: farm.Sweep) -> None:
        with sweep:
            pass

    def in_turn(sweep: farm.Sweep) -> None:
        iterate(sweep.as_completed())

    for way in (farm.Sweep.wait, in_a_block, in_turn):
        monkeypatch.setattr(lock, "BEAT_S", math.inf)  # no beat is halfway
        lock_of(out).unlink(missing_ok=True)
        sweep = farm.sweep(
            taken_over, {"x": (0, 1)}, n=2, out=out, probe=False, overwrite=True, show=False
        )
        with pytest.raises(farm.SweepError, match="is now held by") as caught:
            way(sweep)
        assert len(frames_of_farm(caught.value)) == 1
