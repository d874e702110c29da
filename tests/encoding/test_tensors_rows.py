"""The rank of the tensors sent decides whether a request is a batch."""

from __future__ import annotations

import pytest

from farm.call import TensorInfo
from farm.encoding.tensors import rows_of, unlike_rows
from farm.errors import InvalidInput


@pytest.mark.parametrize(
    ("shape", "declared", "rows"),
    [
        ((3,), (3,), None),
        ((1, 3), (3,), 1),
        ((64, 3), (3,), 64),
        ((0, 3), (3,), 0),
        ((), (), None),
        ((7,), (), 7),
        ((5, 2), (-1, 2), None),
        ((4, 5, 2), (-1, 2), 4),
    ],
)
def test_the_rank_decides(
    shape: tuple[int, ...], declared: tuple[int, ...], rows: int | None
) -> None:
    assert rows_of("x", shape, TensorInfo("x", declared), "m") == rows


@pytest.mark.parametrize("shape", [(), (2,), (3, 4), (1, 1, 3), (3, 1)])
def test_what_does_not_fit_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"'x' has shape .* expects \[3\], or \[-1, 3\] for a b"):
        rows_of("x", shape, TensorInfo("x", (3,)), "m")


def test_unlike_rows_are_named() -> None:
    message = unlike_rows([("x", (2, 3)), ("k", (4, 1))]).message
    assert "shapes 'x' [2, 3], 'k' [4, 1]; expected" in message
