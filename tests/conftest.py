"""What holds for every test.

With FARM_NO_SKIPS=1, as in CI, a skipped test is a failed test. hypothesis has no deadline for one
example, which a busy machine breaks, and in CI tries the same examples each time. Ctrl-C works in
the programs that tests start, also where the tests run in the background of a shell, which has them
ignore it. The user's own state folder is left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.patience import scaled
from tests.running_farm import Farm

settings.register_profile("farm", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("farm")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# For tests that say no time of their own; `--timeout` has precedence.
os.environ.setdefault("PYTEST_TIMEOUT", str(scaled(60.0)))

STATE = tempfile.TemporaryDirectory(prefix="farm-state-")
os.environ["XDG_STATE_HOME"] = STATE.name


@pytest.fixture(params=["stream", pytest.param("zmq", marks=pytest.mark.slow)])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`Farm` of tests.running_farm serves this machine by a unix socket, and then by ZeroMQ."""
    monkeypatch.setattr(Farm, "wire", request.param)
    return str(request.param)


DONT_WRITE, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def pytest_collection_finish() -> None:
    """From now on as the environment says."""
    sys.dont_write_bytecode = DONT_WRITE


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
