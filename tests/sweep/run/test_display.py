"""The display: a bar in a terminal, a line a minute elsewhere, messages at once."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from farm.sweep.file.progress import Progress
from farm.sweep.run.display import Display, cost, facts, hours, line, rate


def at(done: int, **more: object) -> Progress:
    settings: dict[str, object] = {"rate_per_s": 2.0, "eta_s": 30.0, "pending": 100 - done, **more}
    return Progress("running", "beam", 100, done=done, **settings)  # type: ignore[arg-type]  # fields by name


def shown(terminal: bool) -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    return Display(console), text


def test_elsewhere_a_line_a_minute() -> None:
    display, text = shown(terminal=False)
    with display:
        for second in range(181):
            display.show(at(second // 2, elapsed_s=float(second)))
    assert text.getvalue().splitlines() == [
        "beam: 30/100 points (30%), 2/s, 30 s left",
        "beam: 60/100 points (60%), 2/s, 30 s left",
        "beam: 90/100 points (90%), 2/s, 30 s left",
    ]


def test_a_terminal_shows_a_bar() -> None:
    display, text = shown(terminal=True)
    with display:
        display.show(at(40, failed=3))
    assert "43/100" in text.getvalue()
    assert "3 failed, 2/s, 30 s left" in text.getvalue()


def test_messages_are_told_once_and_when_they_are_over() -> None:
    display, text = shown(terminal=False)
    for message in ("", "full disk", "full disk", ""):
        display.show(at(1, message=message))
    assert text.getvalue().splitlines() == ["full disk", "the sweep continues"]


def test_a_sweep_that_ends_does_not_continue() -> None:
    display, text = shown(terminal=False)
    display.show(at(1, message="stopping: interrupted"))
    display.show(replace(at(1), state="interrupted"))
    assert text.getvalue() == "stopping: interrupted\n"


def test_the_cost_is_told_once_and_not_when_all_is_done() -> None:
    display, text = shown(terminal=False)
    display.show(at(4))
    for done in (5, 6):
        display.show(at(done, run_mean_s=36.0, expected_work_s=3600.0))
    assert text.getvalue().splitlines() == [
        "a point takes 36 s on average, so 100 points take about 1 core hours "
        "(times the cores of a worker); expected end in 30 s"
    ]
    display, text = shown(terminal=False)
    display.show(at(100, expected_work_s=3600.0, eta_s=0.0))
    display.show(at(50, expected_work_s=3600.0, eta_s=None))
    assert text.getvalue() == ""


def test_text_is_not_markup() -> None:
    display, text = shown(terminal=False)
    display.say("x[0] = [red]1[/red]")
    assert text.getvalue() == "x[0] = [red]1[/red]\n"


def test_facts_are_those_known() -> None:
    assert facts(Progress("complete", "t", 5, done=5)) == ""
    assert line(Progress("complete", "t", 5, done=5)) == "t: 5/5 points (100%), complete"
    assert line(Progress("complete", "t", 0)) == "t: 0/0 points (100%), complete"
    assert "core hours" in cost(Progress("running", "t", 5))


@pytest.mark.parametrize(
    ("per_s", "text"), [(12345.0, "12,345/s"), (2.5, "2.5/s"), (0.5, "30/min"), (0.001, "3.6/h")]
)
def test_rates_are_readable(per_s: float, text: str) -> None:
    assert rate(per_s) == text


@pytest.mark.parametrize(("seconds", "text"), [(1.0, "0.00028"), (7200, "2"), (3.6e6, "1,000")])
def test_hours_are_readable(seconds: float, text: str) -> None:
    assert hours(seconds) == text
