"""The journals that the crash tests use, and the records in them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from farm.experiment.state.journal import FORMAT as EXPERIMENTS
from farm.storage.frames import Format, Record, read_frames, read_runs
from farm.storage.journal import Journal
from farm.sweep.file.journal import FORMAT as SWEEP

FORMATS = [SWEEP, EXPERIMENTS]

formats = st.sampled_from(FORMATS)


def records_of(format: Format) -> st.SearchStrategy[Record]:
    """Strategy for records of any content, even content that looks like records."""
    payloads = st.binary(max_size=40) | st.just(format.kinds * 30) | st.just(b"\0" * 30)
    return st.builds(Record, st.sampled_from(list(format.kinds)), payloads)


def write(path: Path, format: Format, records: list[Record]) -> list[int]:
    """Write a journal and return its size before and after each record."""
    journal = Journal(path, format)
    ends = [path.stat().st_size]
    for record in records:
        journal.append(record)
        ends.append(path.stat().st_size)
    journal.close()
    return ends


def read(path: Path, format: Format) -> list[Record]:
    """Return the intact records of a journal, which are the same one by one and together."""
    found = list(read_frames(path, format))
    assert [frame for run in read_runs(path, format) for frame in run.frames()] == found
    return [Record(frame.kind, bytes(frame.payload)) for frame in found]
