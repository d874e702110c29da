"""Signals stop a sweep after the points in flight, then at once; handlers are restored."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from farm.cli.signals import stopped_by_signals, terminable
from farm.sweep.run.run import Stop
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import run_here

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize(
    "command",
    [
        ["worker", "a.py", "--to", "nosuch.json"],
        ["experiment", "serve", "--aepsych", "192.0.2.1:0", "--insecure"],
        ["serve", "nosuch.py", "--port", "0"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_in_this_process_leaves_no_handler(tmp_path: Path, command: list[str]) -> None:
    """A process that is forked later would inherit it, and outlive SIGTERM."""
    numbers = (*SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    assert run_here(*command, cwd=tmp_path)[0] != 0
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    ("sent", "at_once"),
    [
        ([signal.SIGINT], False),
        ([signal.SIGINT, signal.SIGINT], True),
        ([signal.SIGTERM], True),
        ([signal.SIGHUP], True),
    ],
)
def test_each_signal_stops_in_its_way(sent: list[signal.Signals], at_once: bool) -> None:
    stop = Stop()
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    before = [signal.getsignal(number) for number in SIGNALS]
    with stopped_by_signals(stop):
        for number in sent:
            os.kill(os.getpid(), number)
    assert (stop.asked, stop.at_once) == (True, at_once)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    signal.signal(signal.SIGHUP, hangup)


def test_a_signal_does_not_look_at_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them may be broken, and importing it takes long."""
    stop = Stop()
    with stopped_by_signals(stop):
        monkeypatch.setattr("farm.cli.signals.usable", lambda: pytest.fail("a handler looks"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.at_once


@pytest.mark.parametrize("left_s", [3600, -1])
def test_in_a_batch_job_sigterm_asks_and_the_end_of_the_job_is_at_once(
    left_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + left_s))
    stop = Stop()
    with stopped_by_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        if left_s < 0:
            wait_until(lambda: stop.at_once)
        else:
            assert not stop.at_once
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.at_once, "Ctrl-C after it is the second request"


def test_a_sweep_under_nohup_survives_the_end_of_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals(Stop()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_termination_ends_the_block_like_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
