"""Forms of tensors beside their plain values: MLServer's content types, and Triton's classes.

The parameter `content_type` says about a tensor: `np` it is as it is; `str` BYTES are text in
UTF-8; `base64` BYTES are sent as base64; `pd` it is a column of a table, whose first axis are its
rows. On a request, `np` and `str` say that its only input is the model's only input, whatever its
name, and `pd` that every input is a column. Source: MLServer's codecs.

The parameter `classification` asks for the best entries of an output in place of its values. Each
is a text `value:index[:label]`, with the value as C++'s `std::to_string` writes it: six decimals of
a float, all digits of an integer. Source: Triton's classification extension.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from farm.call import Array, ModelInfo, TensorInfo
from farm.encoding.tensors import shown
from farm.errors import InvalidInput, UnsupportedFeature
from farm.protocols.kserve.tensors import BYTES, bytes_of

CONTENT_TYPE = "content_type"
NUMPY, PANDAS, TEXT, BASE64 = "np", "pd", "str", "base64"
OF_TENSORS = (NUMPY, PANDAS, TEXT, BASE64)
OF_REQUESTS = (NUMPY, PANDAS, TEXT)
DATETIME = "datetime"


def content_type_of(
    parameters: Mapping[str, Any], where: str, known: Sequence[str] = OF_TENSORS
) -> str:
    """Return the parameter `content_type`, "" if there is none, as MLServer's null says.

    Raises InvalidInput for a type that is not known, UnsupportedFeature for `datetime`.
    """
    value = parameters.get(CONTENT_TYPE)
    if value is None or value == "":
        return ""
    if type(value) is str and value in known:
        return value
    if value == DATETIME:
        raise UnsupportedFeature(
            f"content_type of {where} is 'datetime': models have no dates here; send the text as "
            "'str', or a number"
        )
    raise InvalidInput(
        f"content_type of {where} is {shown(value)}; expected one of {', '.join(known)}"
    )


def decoded_content(
    array: Array, datatype: str, parameters: Mapping[str, Any], where: str
) -> Array:
    """Return the tensor that an input's elements stand for.

    Raises InvalidInput if they are not of the content type, and as `content_type_of`.
    """
    content_type = content_type_of(parameters, where)
    if content_type == BASE64:
        _check_bytes(content_type, datatype, where)
        return _each(array, _from_base64, where)
    if content_type == TEXT:
        _check_bytes(content_type, datatype, where)
        _each(array, _as_text, where)
    return array


def encoded_content(array: Array, content_type: str, where: str) -> Array:
    """Return the elements that stand for an output of BYTES. Raises InvalidInput."""
    if content_type == BASE64:
        return _each(array, lambda element: base64.b64encode(bytes_of(element)), where)
    if content_type == TEXT:
        _each(array, _as_text, where)
    return array


def check_output(content_type: str, datatype: str, where: str) -> None:
    """Raise InvalidInput if an output of this datatype cannot have the content type."""
    if content_type in (TEXT, BASE64):
        _check_bytes(content_type, datatype, where)


def _check_bytes(content_type: str, datatype: str, where: str) -> None:
    if datatype != BYTES:
        raise InvalidInput(
            f"content_type of {where} is {content_type!r}, which is for BYTES; "
            f"it is {datatype}: leave content_type out, or send 'np'"
        )


def _each(array: Array, convert: Callable[[Any], bytes], where: str) -> Array:
    flat = array.reshape(-1)
    converted = np.empty(flat.size, object)
    for i, element in enumerate(flat):
        try:
            converted[i] = convert(element)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(f"{where} holds at position {i} {shown(element)}: {error}") from None
    return converted.reshape(array.shape)


def _from_base64(element: Any) -> bytes:
    try:
        return base64.b64decode(bytes_of(element), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"expected base64, as its content_type says: {error}") from None


def _as_text(element: Any) -> bytes:
    text = bytes_of(element)
    try:
        text.decode()
    except UnicodeDecodeError:
        raise ValueError("expected text in UTF-8, as its content_type says") from None
    return text


def column_shape(name: str, shape: tuple[int, ...], tensor: TensorInfo) -> tuple[int, ...]:
    """Return the shape of a table's column as rows of the model's tensor.

    [rows] and [rows, 1] both fit tensors of shape () and (1,). Raises InvalidInput if the column
    has no such rows.
    """
    expected = tensor.shape
    if expected == (1,) and len(shape) == 1:
        return (*shape, 1)
    if expected == () and len(shape) == 2 and shape[1] == 1:
        return shape[:1]
    if len(shape) != 1 + len(expected):
        raise InvalidInput(
            f"content_type 'pd': input {name!r} has shape {shown(list(shape))}; expected a column, "
            f"{[-1, *expected]}"
        )
    return shape


def names_by_type(names: Sequence[str], content_type: str, info: ModelInfo) -> Sequence[str]:
    """Return the names of a request's inputs: its only input may have any in `np` and `str`."""
    if content_type in (NUMPY, TEXT) and len(names) == len(info.inputs) == 1:
        return [info.inputs[0].name]
    return names


# Classes

CLASSIFICATION = "classification"
NOT_NUMBERS = (BYTES, "BOOL")


def class_count_of(parameters: Mapping[str, Any], datatype: str, where: str) -> int:
    """Return how many classes a requested output should have; 0: it is not to be classified.

    Raises InvalidInput for other values than whole numbers, and for outputs that are not numbers.
    """
    count = parameters.get(CLASSIFICATION)
    if count is None:
        return 0
    if type(count) is not int or not 0 <= count < 2**64:
        raise InvalidInput(
            f"parameter classification of {where} is {shown(count)}; expected the number of "
            "classes, from 1, or 0 for the output itself"
        )
    if count and datatype in NOT_NUMBERS:
        raise InvalidInput(
            f"{where} is {datatype}: classification is for numbers; leave the parameter out"
        )
    return count


def classified(array: Array, rank: int, count: int, labels: Sequence[str] = ()) -> Array:
    """Return the classes of an output, best first, as BYTES: (classes,) or (rows, classes).

    rank: of the output without a batch axis; indices count its entries, row-major. count: how many
    classes, at most as many as there are entries. Of equal entries the first is better, and NaN is
    worse than any number.
    """
    rows = array.shape[:1] if array.ndim > rank else ()
    entries = array.size // max(1, rows[0] if rows else 1)
    values = array.reshape(rows[0] if rows else 1, entries)
    if values.dtype.kind not in "iu":
        values = values.astype(np.float64)  # holds every FP16, BF16 and FP32
    # Descending order of a stable ascending sort: ~x is the opposite order of integers, without
    # an overflow, and NaN is last among floats.
    keys = ~values if values.dtype.kind in "iu" else -values
    best = np.argsort(keys, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(values, best, axis=1)
    texts = np.empty(best.size, object)
    form = "%d:%d" if values.dtype.kind in "iu" else "%f:%d"
    for i, (value, index) in enumerate(
        zip(chosen.reshape(-1).tolist(), best.reshape(-1).tolist(), strict=True)
    ):
        text = form % (value, index)
        texts[i] = (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
    return texts.reshape(*rows, best.shape[1])
