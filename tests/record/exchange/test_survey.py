"""What a record holds, by model, version and operation."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from farm.call import Operation
from farm.record.entry import MODEL, Status, encoded
from farm.record.exchange.survey import described, survey
from farm.record.file import RecordFile
from farm.storage.frames import Record
from tests.record.entries import SQUARE, entry, point


def test_it_counts_evaluations_and_has_the_descriptions(path: Path) -> None:
    with closing(RecordFile(path, indexed=False)) as file:
        file.add([Record(MODEL, json.dumps(SQUARE.to_json()).encode()), encoded(point(1.0))])
        failed = replace(point(2.0), status=Status.FAILED, outputs=(), time=1.8e9)
        file.add([encoded(failed), encoded(replace(point(3.0), operation=Operation.GRADIENT))])
        file.add([encoded(entry(np.ones(2), np.array([np.nan])))])
        steps: list[int] = []
        busy = survey(path, steps.append)
    found = survey(path)
    assert (busy.in_use, found.in_use) == (True, False)
    assert busy.counts == found.counts
    assert found.models == {("square", "1"): SQUARE}
    assert sum(steps) == busy.bytes == path.stat().st_size
    evaluate = found.counts["square", "1", "evaluate"]
    assert (evaluate.points, evaluate.failed, evaluate.not_finite) == (3, 1, 1)
    assert (evaluate.first, evaluate.last) == (1.7e9, 1.8e9)
    assert evaluate.run_time_s == 1.5
    assert found.to_json()["evaluations"][1]["operation"] == "gradient"


def test_a_description_of_a_later_form_is_left_out() -> None:
    assert described(b"[]") is None
    assert described(b"{") is None
    assert described(json.dumps(SQUARE.to_json()).encode()) == SQUARE
