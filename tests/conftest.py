"""Settings and fixtures for all tests.

With FARM_NO_SKIPS=1, as in CI, a skipped test is a failed test. hypothesis has no deadline per
example, which a busy machine would exceed, and in CI tries the same examples each time; its profile
`quick` has few examples, and `thorough` five times the usual number. Ctrl-C works in programs that
tests start, even if the tests run in the background of a shell, which makes them ignore it. The
user's own state folder is not used.
"""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.coroutines import on_loop
from tests.support.running_farm import Farm
from tests.support.time_limits import scaled

# Rewrite its assertions too, so that they explain themselves.
pytest.register_assert_rewrite("tests.support.scheduler_recorder")

settings.register_profile("farm", deadline=None, derandomize="CI" in os.environ, max_examples=20)
settings.register_profile("quick", settings.get_profile("farm"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("farm"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "farm"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# For tests without their own timeout; `--timeout` has precedence.
os.environ.setdefault("PYTEST_TIMEOUT", str(scaled(60.0)))

STATE = tempfile.TemporaryDirectory(prefix="farm-state-")
os.environ["XDG_STATE_HOME"] = STATE.name


@pytest.fixture(params=["stream", pytest.param("zmq", marks=pytest.mark.slow)])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`running_farm.Farm` serves this machine by a unix socket, and then by ZeroMQ."""
    monkeypatch.setattr(Farm, "wire", request.param)
    return str(request.param)


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def later_processes_inherit_nothing() -> Generator[None]:
    """Restore signal handlers and variables, which the processes of later tests would inherit."""
    before = [signal.getsignal(number) for number in SIGNALS]
    variables = dict(os.environ)
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


DONT_WRITE, sys.dont_write_bytecode = sys.dont_write_bytecode, False

# Searches for garbage among all that is collected would take a third of the collection.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scale the timeouts that tests have in whole seconds, which are those of an idle machine."""
    for item in items:
        own = item.get_closest_marker("timeout")
        if own is not None and type(own.args[0]) is int:
            item.add_marker(pytest.mark.timeout(scaled(own.args[0])), append=False)


def pytest_collection_finish() -> None:
    """Apply the setting of the environment; the collected tests are no garbage from here on."""
    sys.dont_write_bytecode = DONT_WRITE
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Run a test that is a coroutine on an event loop of its own."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = on_loop(pyfuncitem.obj)


NO_SKIPS = os.environ.get("FARM_NO_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of one test into a failure."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if NO_SKIPS and report.skipped and not expected:
        report.outcome = "failed"
        report.longrepr = f"skipped, which FARM_NO_SKIPS forbids: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole file into a failure."""
    report = yield
    if NO_SKIPS and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, which FARM_NO_SKIPS forbids: {report.longrepr}"
    return report
