"""Arithmetic over arrays, from untrusted text: `-cost[0]`, `max(stress) > 250`. Pure.

The language has numbers, names, entries `x[0]`, `x[-1]`, `x[1,2]` and ranges `x[0:3]`, the
operators + - * / **, comparisons (1 if true, else 0), `and`, `or`, `not`, and the functions below.
NaN propagates through every operation, including comparisons. Arrays may have one more axis, the
last: the expression then has a value for each position along it.

Where texts are allowed, `solver == "rk4"`, `!=` and `solver in ("rk4", "bdf")` compare them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from farm.call import BFLOAT16, Array
from farm.errors import InvalidInput, shortened

LONGEST = 1000
"""Maximum length of an expression in characters."""
DEEPEST = 20
"""Maximum nesting depth of an expression."""
LARGEST = 10**7
"""Maximum entries of an intermediate result: two arrays may broadcast to a larger one."""

_NUMBERS = re.compile(r"(?<![\w.])\.?\d[\w.]*")
"""Words that start like a number."""
_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE]\d*)?")
_DECIMAL = re.compile(
    r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)", re.ASCII | re.IGNORECASE
)
"""A number as programs write it, unlike `1_000` and other digits that `float` takes, too."""
_QUOTES = re.compile(r"['\"\\]")
_TEXT = re.compile(r"\"[^\"\\]*\"|'[^'\\]*'")
"""A text in quotes."""

_BINARY: Mapping[type[ast.operator], Callable[[Array, Array], Array]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Array, Array], Array]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_LOGICAL: Mapping[type[ast.boolop], Callable[[Array, Array], Array]] = {
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
}
_EACH: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
}
"""Functions applied to each entry."""
_OVER_ALL: Mapping[str, Callable[..., Any]] = {
    "min": np.min,
    "max": np.max,
    "sum": np.sum,
    "mean": np.mean,
    "norm": np.linalg.norm,
}
"""Functions of all entries together, of one or more arguments."""
FUNCTIONS = (*_OVER_ALL, *_EACH)


def number(text: str) -> float:
    """Return the number that a text is, white space around it aside. Raises ValueError."""
    if not is_number(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def is_number(text: str) -> bool:
    """Whether a text is a number, as `number` reads it."""
    return _DECIMAL.fullmatch(text.strip()) is not None


class Expression:
    """A checked expression; `where` begins its error messages.

    texts: whether it may compare names with texts. names: the variables that it needs; compared:
    names and the texts that they are compared with. Raises InvalidInput.
    """

    def __init__(self, text: str, where: str, *, texts: bool = False) -> None:
        self.text = text.strip()
        self.where = where
        self.texts = texts
        self.compared: set[tuple[str, str]] = set()
        self._root = self._parsed()
        self.names: frozenset[str] = frozenset(self._check(self._root, 0))

    @property
    def is_condition(self) -> bool:
        """Whether the value is 0 or 1: of a comparison, or of and, or, not."""
        root = self._root
        if isinstance(root, ast.UnaryOp):
            return isinstance(root.op, ast.Not)
        return isinstance(root, ast.Compare | ast.BoolOp)

    def numbers(self, values: Mapping[str, Array], count: int) -> Array:
        """Return the values of the expression at `count` points; NaN or infinite without a value.

        values: for each of `names`, an array whose last axis goes over the points; entries such as
        x[0] refer to the axes before it. Raises InvalidInput.
        """
        with np.errstate(all="ignore"):
            result = self._value(self._root, _Points(values, count))
        result = result if result.ndim else np.full(count, float(result))
        if result.size != count:
            raise self._error(
                f"gives {result.size // count} numbers for each point; expected one, such as x[0] "
                "or max(x)"
            )
        return result.reshape(count).astype(np.float64)

    def number(self, values: Mapping[str, Array]) -> float:
        """Return the value of the expression, a single number; NaN if an operand is NaN.

        values: a numeric array for each of `names`. Raises InvalidInput.
        """
        try:
            with np.errstate(divide="raise", over="raise", invalid="raise", under="ignore"):
                result = self._value(self._root, values)
        except FloatingPointError as error:
            raise self._error(f"has no value: {_reason(str(error))}") from None
        self._check_single(result)
        return float(result.reshape(())) + 0.0

    def check_shapes(self, values: Mapping[str, Array]) -> None:
        """Raise InvalidInput unless arrays of these shapes and types yield one number."""
        with np.errstate(all="ignore"):
            self._check_single(self._value(self._root, values))

    def _check_single(self, result: Array) -> None:
        if result.size != 1:
            raise self._error(
                f"gives {result.size} numbers, of shape {list(result.shape)}; expected one, "
                "such as x[0] or max(x)"
            )

    def _parsed(self) -> ast.expr:
        if len(self.text) > LONGEST:
            raise InvalidInput(
                f"{self.where} has {len(self.text)} characters; expected {LONGEST} at most"
            )
        # Python warns about some texts, such as 1and 2; they are refused before it parses them.
        plain = _TEXT.sub('""', self.text) if self.texts else self.text
        for word in _NUMBERS.findall(plain):
            if not _NUMBER.fullmatch(word):
                raise self._error(f"holds {word[:30]!r}; expected numbers such as 1, 0.5 or 1e-3")
        if marks := _QUOTES.search(plain.replace('""', "") if self.texts else plain):
            raise self._error(f"holds {marks.group()}; expected numbers and names")
        try:
            return ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
            raise self._error(f"is not an expression: {reason}") from None

    def _check(self, node: ast.AST, depth: int) -> set[str]:
        """Return the names in a node; unsupported syntax is refused before any evaluation."""
        if depth > DEEPEST:
            raise self._error(f"is nested deeper than {DEEPEST}")
        match node:
            case ast.Constant(value=value):
                self._constant(value)
                return set()
            case ast.Name(id=name):
                if name in FUNCTIONS:
                    raise self._error(f"names the function {name} without ( )")
                return {name}
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
                parts = [operand]
            case ast.BinOp() if all(type(op) in _BINARY for op, _ in _terms(node)[1]):
                first, terms = _terms(node)
                parts = [first, *(term for _, term in terms)]
            case ast.BoolOp(values=parts):
                pass
            case ast.Compare() if self.texts and _texts_of(node.comparators[-1]):
                return self._check_texts(node)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARED for op in ops
            ):
                parts = [left, *others]
            case ast.Subscript(value=value, slice=place):
                self._place(place)
                parts = [value]
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
                if not parts or (name in _EACH and len(parts) != 1):
                    raise self._error(f"calls {name} with {len(parts)} values; expected one")
            case _:
                raise self._error(
                    f"holds {self._shown(node)}, which is not offered; expected numbers, names, "
                    f"x[0], + - * / **, comparisons, and, or, not, {', '.join(FUNCTIONS)}"
                )
        return set().union(*(self._check(part, depth + 1) for part in parts))

    def _check_texts(self, node: ast.Compare) -> set[str]:
        """Return the name that a comparison compares with texts, as `solver == "rk4"`."""
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant()]
            ) if name not in FUNCTIONS:
                pass
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.In() | ast.NotIn()],
                comparators=[ast.Tuple() | ast.List()],
            ) if name not in FUNCTIONS:
                pass
            case _:
                raise self._error(
                    f"holds {self._shown(node)}; expected a text after a name, such as "
                    'solver == "rk4" or solver in ("rk4", "bdf")'
                )
        self.compared |= {(name, text) for text in _texts_of(node.comparators[0])}
        return {name}

    def _compared_texts(self, node: ast.Compare, values: Mapping[str, Array]) -> Array:
        """Return 1 where a name has one of the texts, or has none of them; NaN where it is ""."""
        assert isinstance(node.left, ast.Name), "it was checked before"
        if node.left.id not in values:
            self._named(node.left.id, values)
        array = np.asarray(values[node.left.id])
        if array.dtype.kind != "U":
            raise self._error(f"compares {node.left.id!r}, a number, with a text")
        held = np.isin(array, _texts_of(node.comparators[0]))
        if isinstance(node.ops[0], ast.NotEq | ast.NotIn):
            held = ~held
        return np.where(array == "", np.nan, held.astype(np.float64))

    def _value(self, node: ast.expr, values: Mapping[str, Array]) -> Array:
        match node:
            case ast.Constant(value=constant):
                return np.asarray(self._constant(constant))
            case ast.Name(id=name):
                return self._named(name, values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _truth(np.logical_not, self._value(operand, values))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return np.negative(self._value(operand, values))
            case ast.UnaryOp(operand=operand):
                return self._value(operand, values)
            case ast.BinOp():
                first, terms = _terms(node)
                result = self._value(first, values)
                for binary, term in terms:
                    pair = self._fitting(result, self._value(term, values))
                    result = _BINARY[type(binary)](*pair)
                return result
            case ast.BoolOp(op=op, values=parts):
                return self._folded(_LOGICAL[type(op)], [self._value(p, values) for p in parts])
            case ast.Compare() if _texts_of(node.comparators[-1]):
                return self._compared_texts(node, values)
            case ast.Compare(left=left, ops=ops, comparators=others):
                each = [self._value(part, values) for part in (left, *others)]
                held = [
                    _truth(_COMPARED[type(op)], *self._fitting(a, b))
                    for op, a, b in zip(ops, each, each[1:], strict=False)
                ]
                return self._folded(np.logical_and, held)
            case ast.Subscript(value=array, slice=place):
                lead = int(isinstance(values, _Points))  # axes at the end that no index reaches
                return self._entry(self._value(array, values), place, node, lead)
            case ast.Call(func=ast.Name(id=name), args=args):
                given = [self._value(arg, values) for arg in args]
                if name in _EACH:
                    return _EACH[name](given[0])
                together = np.concatenate([_entries(value, values) for value in given])
                if not together.size:
                    raise self._error(f"takes {name} of no entries")
                return np.asarray(_OVER_ALL[name](together, axis=0))
        raise AssertionError(f"{ast.dump(node)} was checked before")

    def _folded(self, operation: Callable[..., Array], values: list[Array]) -> Array:
        result = values[0]
        for value in values[1:]:
            result = _truth(operation, *self._fitting(result, value))
        return result

    def _named(self, name: str, values: Mapping[str, Array]) -> Array:
        if name not in values:
            raise self._error(f"names {name!r}; expected one of {', '.join(values) or 'none'}")
        array = np.asarray(values[name])
        if array.dtype.kind == "U" and self.texts:
            raise self._error(
                f'names the text {name!r} alone; expected a comparison, such as {name} == "a"'
            )
        if array.dtype.kind not in "biuf" and array.dtype.name != BFLOAT16:
            raise self._error(f"names {name!r}, which holds no real numbers")
        return array.astype(np.float64)

    def _fitting(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return both arrays if their shapes broadcast to a result that is not too large."""
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            shape = None
        if shape is None or np.prod(shape, dtype=np.float64) > LARGEST:
            raise self._error(
                f"combines shapes {list(a.shape)} and {list(b.shape)}, which do not fit"
            )
        return a, b

    def _entry(self, array: Array, index: ast.expr, node: ast.expr, lead: int) -> Array:
        place = self._place(index)
        place = place if isinstance(place, tuple) else (place,)
        shape = array.shape[: array.ndim - lead]
        try:
            if len(place) > len(shape):
                raise IndexError
            return np.asarray(array[place])
        except IndexError:
            raise self._error(
                f"takes {self._shown(node)} of an array of shape {list(shape)}"
            ) from None

    def _constant(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(f"holds {str(value)[:30]!r}; expected numbers and names")
        try:
            number = float(value)
        except OverflowError:
            number = np.inf
        if not np.isfinite(number):
            raise self._error("holds a number that is too large")
        return number

    def _place(self, node: ast.expr) -> Any:
        """Return the index inside [ ]: integers and ranges of them."""
        match node:
            case ast.Tuple(elts=parts):
                return tuple(self._place(part) for part in parts)
            case ast.Slice(lower=lower, upper=upper, step=None):
                return slice(*(None if end is None else self._place(end) for end in (lower, upper)))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                value = -value
            case ast.Constant(value=int(value)):
                pass
            case _:
                value = True
        if isinstance(value, bool) or abs(value) > LARGEST * 100:
            raise self._error(f"has [{self._shown(node)}]; expected whole numbers, such as x[0]")
        return value

    def _shown(self, node: ast.AST) -> str:
        text = ast.get_source_segment(self.text, node) if isinstance(node, ast.expr) else None
        text = text or type(node).__name__
        return shortened(text, 40)

    def _error(self, what: str) -> InvalidInput:
        text = shortened(" ".join(self.text.split()), 60)
        return InvalidInput(f"{self.where} = {text}: it {what}")


class _Points(dict[str, Array]):
    """Arrays by name with a last axis of `count` points."""

    def __init__(self, values: Mapping[str, Array], count: int) -> None:
        super().__init__(values)
        self.count = count


def _entries(array: Array, values: Mapping[str, Array]) -> Array:
    """Return all entries of an array along one first axis, before that of the points if any."""
    if not isinstance(values, _Points):
        return np.ravel(array)
    whole = np.broadcast_to(array, (*array.shape[:-1], values.count))
    return whole.reshape(-1, values.count)


def _terms(node: ast.BinOp) -> tuple[ast.expr, list[tuple[ast.operator, ast.expr]]]:
    """Flatten `a + b - c` into a, and [+ b, - c]: its syntax tree is as deep as it has terms."""
    terms = []
    first: ast.expr = node
    while isinstance(first, ast.BinOp):
        terms.append((first.op, first.right))
        first = first.left
    return first, terms[::-1]


def _texts_of(node: ast.expr) -> list[str]:
    """Return the texts that a node stands for: one, or those of a list; [] for other nodes."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if parts:
            texts = [text for part in parts for text in _texts_of(part)]
            return texts if len(texts) == len(parts) else []
    return []


def _truth(operation: Callable[..., Array], *values: Array) -> Array:
    """Return 1 where the operation is true, 0 where it is false, NaN where an operand is NaN."""
    with np.errstate(invalid="ignore"):
        held = np.asarray(operation(*values), dtype=np.float64)
        for value in values:
            held = np.where(np.isnan(value), np.nan, held)
    return held


def _reason(text: str) -> str:
    for word, reason in (
        ("divide", "it divides by zero, or takes the logarithm of zero"),
        ("overflow", "a number becomes too large"),
    ):
        if word in text:
            return reason
    return "an operation has no result, such as the root of a negative number"
