"""What speaks for and against the existence of a job; test_jobs.py has the rules in use."""

from __future__ import annotations

import math

from farm.provision.batch.absence import (
    ASK_AGAIN_S,
    CONFIRM_S,
    ENDING_SILENCE_S,
    SILENCE_S,
    Evidence,
)


def first_missing(evidence: Evidence) -> float | None:
    return evidence.first_missing


def is_absent(evidence: Evidence) -> tuple[bool, bool]:
    return evidence.is_missing, evidence.is_absent


def seems_gone(evidence: Evidence) -> bool:
    return evidence.seems_gone


def asks(evidence: Evidence, now: float, *, ending_since: float | None = None) -> bool:
    return evidence.calls_for_question(now, ending_since=ending_since)


def test_a_list_speaks_of_the_time_when_it_was_asked_for() -> None:
    evidence = Evidence(10.0, 10.0)
    evidence.missing(10.0)
    assert first_missing(evidence) is None, "it may be older than the job"
    evidence.missing(11.0)
    assert first_missing(evidence) == 11.0
    evidence.listed(12.0)
    assert first_missing(evidence) is None
    evidence.missing(11.5)
    assert first_missing(evidence) is None


def test_a_job_seems_gone_until_something_speaks_of_it() -> None:
    evidence = Evidence(10.0, 10.0)
    evidence.unknown(11.0, 11.0)
    assert not seems_gone(evidence), "lists may have it"
    evidence.missing(12.0)
    assert not seems_gone(evidence), "it may have been unknown only at first"
    evidence.unknown(13.0, 13.0)
    assert seems_gone(evidence)
    evidence.heard()
    assert not seems_gone(evidence)
    evidence.missing(14.0)
    evidence.exists(15.0)
    assert not seems_gone(evidence)


def test_what_calls_for_a_question() -> None:
    evidence = Evidence(0.0, 0.0)
    assert not asks(evidence, 1.0)
    assert not asks(evidence, SILENCE_S)
    assert asks(evidence, SILENCE_S + 1.0), "silence"
    evidence.missing(2.0)
    assert asks(evidence, 3.0)
    evidence.asked(3.0)
    assert not asks(evidence, 3.0 + ASK_AGAIN_S - 1.0)
    assert asks(evidence, 3.0 + ASK_AGAIN_S)
    evidence.exists(20.0)
    assert not asks(evidence, 21.0)
    evidence.contradicted()
    assert asks(evidence, 21.0)


def test_a_job_that_should_be_ending_is_asked_about_whatever_lists_say() -> None:
    evidence = Evidence(0.0, 0.0)
    evidence.listed(100.0)
    late = 50.0 + ENDING_SILENCE_S + 1.0
    assert asks(evidence, late, ending_since=50.0)
    evidence.exists(late)
    assert not asks(evidence, late + ENDING_SILENCE_S, ending_since=50.0)
    assert asks(evidence, late + ENDING_SILENCE_S + 1.0, ending_since=50.0)


def test_it_is_missing_after_a_minute_and_absent_if_it_is_unknown_after_that() -> None:
    evidence = Evidence(0.0, 0.0)
    evidence.missing(1.0)
    evidence.unknown(2.0, 2.0)
    evidence.missing(CONFIRM_S)
    assert is_absent(evidence) == (False, False)
    evidence.missing(1.0 + CONFIRM_S)
    assert is_absent(evidence) == (True, False)
    evidence.unknown(1.0 + CONFIRM_S, 2.0 + CONFIRM_S)
    assert is_absent(evidence) == (True, True)
    evidence.heard()
    assert is_absent(evidence) == (False, False)


def test_a_submission_that_runs_is_in_no_list() -> None:
    evidence = Evidence(math.inf, 0.0)
    evidence.missing(1.0)
    assert first_missing(evidence) is None
