"""Statistics as KServe clients read them."""

from __future__ import annotations

from farm.dispatcher.statistics import Duration, ModelStatistics
from farm.protocols.kserve.metadata import statistics_of
from farm.protocols.kserve.versions import Numbered


def test_a_model_that_ran() -> None:
    told = ModelStatistics(
        success=Duration(4, 2.0),
        fail=Duration(1, 0.5),
        queue=Duration(4, 0.25),
        compute=Duration(4, 1.5),
        rows=7,
        executions=2.9999999999999996,
        by_batch={5: Duration(1.0, 1.0), 1: Duration(2, 0.5)},
        last=1_700_000_000.1234,
        reused=3,
        missed=7,
    )
    (row,) = statistics_of([Numbered("n", "2", "m")], {"m": told, "other": ModelStatistics()})[
        "model_stats"
    ]
    assert (row["name"], row["version"]) == ("n", "2")
    assert row["last_inference"] == 1_700_000_000_123
    assert (row["inference_count"], row["execution_count"]) == (7, 3)
    stats = row["inference_stats"]
    assert stats["success"] == {"count": 4, "ns": 2_000_000_000}
    assert stats["fail"] == {"count": 1, "ns": 500_000_000}
    assert stats["queue"] == {"count": 4, "ns": 250_000_000}
    assert stats["compute_infer"] == {"count": 4, "ns": 1_500_000_000}
    assert stats["compute_input"] == stats["compute_output"] == {"count": 4, "ns": 0}
    assert (stats["cache_hit"], stats["cache_miss"]) == (
        {"count": 3, "ns": 0},
        {"count": 7, "ns": 0},
    )
    assert [(b["batch_size"], b["compute_infer"]) for b in row["batch_stats"]] == [
        (1, {"count": 2, "ns": 500_000_000}),
        (5, {"count": 1, "ns": 1_000_000_000}),
    ]
    assert (row["response_stats"], row["memory_usage"]) == ({}, [])


def test_a_model_that_nobody_called() -> None:
    (row,) = statistics_of([Numbered("m", "1", "m")], {})["model_stats"]
    assert (row["last_inference"], row["inference_count"], row["batch_stats"]) == (0, 0, [])
    assert row["inference_stats"]["success"] == {"count": 0, "ns": 0}
