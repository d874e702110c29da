"""What a farm expects whose workers come from several sources."""

from __future__ import annotations

from farm.dispatcher.first_worker import Expectation
from tests.support.expected import Expected


def test_a_farm_without_sources_expects_nothing() -> None:
    for expected in (Expectation(), Expectation([]), Expectation([Expectation()])):
        assert not expected.incomplete
        assert not expected.may_come
        assert expected.awaited(()) == expected.why("beam") == ""
        assert expected.starts_in("beam") is None


def test_the_first_source_with_a_reason_gives_it() -> None:
    here, jobs = Expected(), Expected(reason="job 7 is PENDING", whys={"beam": "job 8 waits"})
    expected = Expectation([here, jobs])
    assert (expected.awaited(()), expected.why("beam")) == ("job 7 is PENDING", "job 8 waits")
    here.reason, here.whys["beam"] = "it loads beam.py", "beam.py is loaded"
    assert (expected.awaited(()), expected.why("beam")) == ("it loads beam.py", "beam.py is loaded")


def test_any_source_may_bring_workers_and_models() -> None:
    here, jobs = Expected(may_come=True), Expected(incomplete=True)
    assert Expectation([here, jobs]).may_come
    assert Expectation([here, jobs]).incomplete
    assert not Expectation([here]).incomplete
    assert not Expectation([jobs]).may_come


def test_the_earliest_start_counts_unless_the_user_has_set_a_limit() -> None:
    sources: list[Expectation] = [
        Expected(starts={"beam": 90.0}),
        Expected(starts={"beam": 70.0}),
        Expectation(),
    ]
    assert Expectation(sources).starts_in("beam") == 70.0
    assert Expectation(sources).starts_in("plate") is None
    assert Expectation(sources, forecasts=False).starts_in("beam") is None
