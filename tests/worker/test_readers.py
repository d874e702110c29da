"""Readers return the numbers of an output file, or say what they looked for and what they found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farm.worker.readers import column, json_value, npy, regex


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output.txt"


def test_regex_takes_groups_of_all_matches(output: Path) -> None:
    output.write_text("step 1 load= 1.5\nstep 2 load= -2.5D-01\n")
    np.testing.assert_array_equal(regex(r"load=\s*(\S+)")(output), [1.5, -0.25])
    np.testing.assert_array_equal(regex(r"^step (\d) load=\s*(\S+)$")(output), [1, 1.5, 2, -0.25])
    np.testing.assert_array_equal(regex(r"-\d\.\d+D-\d+")(output), [-0.25])


def test_regex_reads_non_finite_numbers(output: Path) -> None:
    output.write_text("y nan y inf y -Infinity")
    np.testing.assert_array_equal(regex(r"y (\S+)")(output), [np.nan, np.inf, -np.inf])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.150000-119", 0.15e-119),
        ("-0.25+120", -0.25e120),
        (".5-100", 0.5e-100),
        ("1.0D-119", 1e-119),
        ("2d3", 2000.0),
        ("1.5Q+02", 150.0),
        ("+1.5E-02", 0.015),
    ],
)
def test_numbers_as_fortran_writes_them(output: Path, text: str, value: float) -> None:
    output.write_text(f"y={text}\n")
    np.testing.assert_array_equal(regex(r"y=(.+)")(output), [value])
    output.write_text(f"y\n{text}\n")
    np.testing.assert_array_equal(column("y")(output), [value])


@pytest.mark.parametrize(
    "text", ["1_0", "1_0.5", "\u0661", "0x10", "1-2", "2020-119", "1.5-20", "D5", "."]
)
def test_other_texts_are_no_numbers(output: Path, text: str) -> None:
    output.write_text(f"y={text}\n")
    with pytest.raises(ValueError, match="where a number is expected"):
        regex(r"y=(.+)")(output)
    output.write_text(f"y\n{text}\n")
    with pytest.raises(ValueError, match="where a number is expected"):
        column("y")(output)


TABLE = "written by sim\n# t  temperature  p\n0  293.0  1e5\n\n# half\n1  294.5  2e5\n"


def test_column_by_position_or_name(output: Path) -> None:
    output.write_text(TABLE)
    np.testing.assert_array_equal(column(1, skip=1)(output), [293, 294.5])
    np.testing.assert_array_equal(column(-1, skip=1)(output), [1e5, 2e5])
    np.testing.assert_array_equal(column("temperature", skip=1)(output), [293, 294.5])
    output.write_text("a , b\n1, 2\n3 ,4\n")
    np.testing.assert_array_equal(column("b", delimiter=",")(output), [2, 4])


def test_json_value_follows_keys(output: Path) -> None:
    output.write_text('{"result": [{"y": [1, 2]}, 7]}')
    assert json_value("result", 0, "y")(output) == [1, 2]
    assert json_value()(output) == {"result": [{"y": [1, 2]}, 7]}


def test_npy(output: Path) -> None:
    np.save(output.with_suffix(".npy"), np.eye(2))
    np.testing.assert_array_equal(npy(file="output.npy")(output), np.eye(2))


def test_another_file_of_the_folder(output: Path) -> None:
    (output.parent / "log").write_text("y=3")
    assert regex(r"y=(\d)", file="log")(output).tolist() == [3]


@pytest.mark.parametrize(
    ("text", "reader", "expected"),
    [
        ("nothing here", regex("y=(.*)"), "output.txt has no match of 'y=.*begins 'nothing here'"),
        ("", regex("y"), "it is empty"),
        ("y=fast", regex("y=(.*)"), "output.txt has 'fast' where a number is expected"),
        ("1 2\n3\n", column(1), r"has a line without column 1: \['3'\]"),
        ("a b\n1 2", column("c"), r"no column 'c'; its columns are \['a', 'b'\]"),
        ("", column("c"), r"no column 'c'; its columns are \[\]"),
        ("{", json_value(), "output.txt is not JSON"),
        ('{"a": 1}', json_value("a", "b"), r"has nothing at \['a', 'b'\]"),
        ("", regex("y", file="gone"), r"wrote no 'gone'; the folder holds \['output.txt'\]"),
    ],
)
def test_what_is_missing_is_said(output: Path, text: str, reader: object, expected: str) -> None:
    assert callable(reader)
    output.write_text(text)
    with pytest.raises(ValueError, match=expected):
        reader(output)


def test_a_pickle_in_an_npy_file_is_not_opened(output: Path) -> None:
    np.save(output.with_suffix(".npy"), np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        npy(file="output.npy")(output)
