"""Logs for programs: every line is one JSON object, whatever is logged or printed."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from typing import Any

from farm.machine.json_log import LONGEST_LINE, JsonFormatter, JsonLines, line_of, nothing


def logged(message: str, *words: object, **more: Any) -> dict[str, Any]:
    context = more.pop("context", {})
    record = logging.getLogger("x").makeRecord(
        "farm.x", logging.WARNING, "file", 1, message, words, more.pop("exc_info", None), **more
    )
    text = JsonFormatter(lambda: context).format(record)
    assert "\n" not in text
    data = json.loads(text)
    assert isinstance(data, dict)
    return data


def test_a_record_is_one_object() -> None:
    data = logged("beam %d\nbent", 7, extra={"call": "a-1", "model": "beam", "other": "left out"})
    assert data.pop("time").endswith("Z")
    assert json.loads(line_of(0.25, "INFO", "x", "y", {}))["time"] == "1970-01-01T00:00:00.250Z"
    assert data == {
        "level": "WARNING",
        "logger": "farm.x",
        "message": "beam 7\nbent",
        "call": "a-1",
        "model": "beam",
    }


def test_fields_of_the_context_give_way_to_those_of_the_record() -> None:
    data = logged(
        "x", context={"call": "outer", "worker": "w"}, extra={"call": "own", "client": ""}
    )
    assert (data["call"], data["worker"]) == ("own", "w")
    assert "client" not in data


def test_exceptions_have_their_traceback() -> None:
    try:
        raise ValueError("negative")
    except ValueError:
        data = logged("file \udcff", exc_info=sys.exc_info())
    assert data["message"] == "file ?", "which is no Unicode"
    assert data["exception"].endswith("ValueError: negative")


def printed(*texts: str) -> list[dict[str, Any]]:
    to = io.StringIO()
    lines = JsonLines(to, "stdout", lambda: 0.0, lambda: {"call": "a-1"})
    for text in texts:
        lines.write(text)
    lines.end()
    return [json.loads(line) for line in to.getvalue().splitlines()]


def test_printed_lines_are_objects() -> None:
    first, second = printed("solv", "ing\n", "\n", "done")
    assert (first["message"], first["call"], first["logger"]) == ("solving", "a-1", "stdout")
    assert second["message"] == "done"


def test_a_line_without_end_is_cut() -> None:
    messages = [data["message"] for data in printed("x" * (2 * LONGEST_LINE + 5))]
    assert list(map(len, messages)) == [LONGEST_LINE, LONGEST_LINE, 5]


def test_lines_of_threads_do_not_mix() -> None:
    to = io.StringIO()
    lines = JsonLines(to, "stdout", lambda: 0.0, nothing)
    lines.write("one ")
    thread = threading.Thread(target=lines.write, args=("two\n",))
    thread.start()
    thread.join()
    lines.write("line\n")
    assert [json.loads(text)["message"] for text in to.getvalue().splitlines()] == [
        "two",
        "one line",
    ]


def test_a_stream_for_print_and_for_programs() -> None:
    with open("/dev/null", "w", encoding="utf-8") as to:
        lines = JsonLines(to, "stdout", lambda: 0.0, nothing)
        print("beam", 7, file=lines, flush=True)
        assert lines.writable()
        assert (lines.fileno(), lines.encoding) == (to.fileno(), "utf-8")
