"""Functions as models: `@farm.model`, and plain functions; models with one method for several."""

from __future__ import annotations

import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Container, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, TypeVar, get_args, get_origin

import numpy as np

from farm.call import TAKE_SENS, TAKE_VEC, Array, Operation, TensorInfo
from farm.declared import Tensors
from farm.model import Config, Inputs, Model, operations_of
from farm.sequences import Sequence

T = TypeVar("T")
Function = Callable[..., Any]

TRAITS = (
    *("name", "description", "max_batch", "repeatable", "keeps_point", "copies", "labels"),
    *("version", "config_keys"),
)
"""Facts that a model states about itself."""


def _forwarded(method: str) -> Function:
    def forward(self: ForwardingModel, *arguments: Any) -> Any:
        return self.ask(method, *arguments)

    forward.__doc__ = f"Return what `ask` returns for {method}."
    return forward


class ForwardingModel(Model):
    """A model that runs elsewhere: all its methods but `describe` pass their arguments to `ask`.

    A subclass sets `operations`.
    """

    evaluate = _forwarded("evaluate")
    gradient = _forwarded("gradient")
    apply_jacobian = _forwarded("apply_jacobian")
    apply_hessian = _forwarded("apply_hessian")
    value_and_gradient = _forwarded("value_and_gradient")
    cost = _forwarded("cost")

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what this method of the model returns."""
        raise NotImplementedError(f"{type(self).__name__} defines no ask")

    def like(self, model: Model) -> None:
        """Take over the facts and the operations of another model."""
        for trait in TRAITS:
            setattr(self, trait, getattr(model, trait))
        self.operations = operations_of(model)


class DifferentiableModel(Model):
    """A model whose methods for derivatives all call `differentiate`, which a subclass writes."""

    def differentiate(
        self,
        operation: Operation,
        wrt: tuple[int, ...],
        inputs: Inputs,
        vectors: Items[Array],
        config: Config,
    ) -> Any:
        """Return the derivative; for value_and_gradient a pair with the outputs first.

        wrt: positions of the output and of the inputs; vectors: sens, vec or both.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no differentiate")

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        """Return J^T sens."""
        return self.differentiate(Operation.GRADIENT, (out_wrt, in_wrt), inputs, [sens], config)

    def value_and_gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        """Return the outputs and J^T sens."""
        wrt = out_wrt, in_wrt
        return self.differentiate(Operation.VALUE_AND_GRADIENT, wrt, inputs, [sens], config)

    def apply_jacobian(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, vec: Array, config: Config
    ) -> Any:
        """Return J vec."""
        wrt = out_wrt, in_wrt
        return self.differentiate(Operation.APPLY_JACOBIAN, wrt, inputs, [vec], config)

    def apply_hessian(
        self,
        out_wrt: int,
        in_wrt1: int,
        in_wrt2: int,
        inputs: Inputs,
        sens: Array,
        vec: Array,
        config: Config,
    ) -> Any:
        """Return the derivative of J^T sens along vec."""
        wrt = out_wrt, in_wrt1, in_wrt2
        return self.differentiate(Operation.APPLY_HESSIAN, wrt, inputs, [sens, vec], config)


def vectors_of(operation: Operation, sens: T, vec: T) -> list[T]:
    """Return those of the two that a derivative takes."""
    return [sens] * (operation in TAKE_SENS) + [vec] * (operation in TAKE_VEC)


def offered(
    outputs: Items[Any],
    inputs: Items[Any],
    gives: Callable[[Operation, tuple[int, ...]], bool],
) -> frozenset[Operation]:
    """Return the operations of a model that finds out which derivatives it can compute.

    outputs, inputs: its tensors; those of floating-point numbers have derivatives. gives: whether
    the derivative can be computed, for an operation and positions of an output and inputs.
    """
    floats = ([i for i, t in enumerate(ts) if "float" in t.dtype] for ts in (outputs, inputs))
    pairs = list(product(*floats))
    found = {Operation.EVALUATE}
    for operation in (Operation.GRADIENT, Operation.APPLY_JACOBIAN, Operation.APPLY_HESSIAN):
        more = operation is Operation.APPLY_HESSIAN
        if any(gives(operation, (o, i, i) if more else (o, i)) for o, i in pairs):
            found.add(operation)
    if Operation.GRADIENT in found:
        found.add(Operation.VALUE_AND_GRADIENT)
    return frozenset(found)


class FunctionModel(Model):
    """A model made of one function, which takes the inputs by name and, optionally, `config`.

    traits: facts about the model by name, see `TRAITS`; `stateful` may be one of them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Tensors,
        outputs: Tensors,
        traits: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.outputs = outputs
        for trait, value in traits.items():
            setattr(self, trait, value)
        name, stateful = self.name, self.stateful
        self.description = inspect.getdoc(function) or ""
        parameters = inspect.signature(function).parameters
        takes_config = "config" in parameters and "config" not in inputs
        wanted = set(inputs) | ({"config"} if takes_config else set())
        if stateful:
            if "sequence" in inputs:
                raise TypeError(
                    f"function {name!r} is stateful and has an input 'sequence', which is the name "
                    "of the argument for its state; rename the input"
                )
            wanted.add("sequence")
        optional = {n for n, p in _arguments(function).items() if p.default is not p.empty}
        self.options = frozenset(optional - wanted - {"config"})
        self.config_keys = None if takes_config else self.options
        kinds = {p.kind for p in parameters.values()}
        required = {
            p.name
            for p in parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        unknown = wanted - set(parameters) if inspect.Parameter.VAR_KEYWORD not in kinds else set()
        if unknown or required - wanted:
            raise TypeError(
                f"function {name!r} takes {list(parameters)}, but its inputs are {list(inputs)}; "
                "name its arguments after the inputs"
            )

    def evaluate(self, inputs: Inputs, config: Config, *sequence: Sequence) -> Any:
        """Return the function's value at `inputs`."""
        others = _from_config(config, self.options) if config else {}
        if self.config_keys is None:
            others["config"] = config
        if sequence:
            others["sequence"] = sequence[0]
        return self.function(**inputs, **others)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def model(
    function: None = None,
    /,
    *,
    inputs: Tensors | None = None,
    outputs: Tensors | None = None,
    name: str = "",
    max_batch: int = 1,
    repeatable: bool = True,
    copies: bool = True,
    version: str = "",
    stateful: bool = False,
) -> Callable[[Callable[..., Any]], FunctionModel]:
    """Decorator that turns a function into a model; its arguments are the inputs, by name.

    Other arguments have defaults, which the config may replace by name; one called `config` gets
    all of it. If the model is stateful, the argument `sequence` gets the `farm.Sequence`. Example:

        @farm.model(inputs={"x": 2}, outputs={"y": 1})
        def forward(x, nodes=200): return x.sum()

    Raises TypeError without inputs and outputs, as in `@farm.model` without parentheses.
    """
    if function is not None or inputs is None or outputs is None:
        names = ["x"] if function is None else _arguments(function)
        raise TypeError(decoration(names, "" if function is None else _name_of(function)))

    def decorate(function: Callable[..., Any]) -> FunctionModel:
        traits = {
            "name": name or function.__name__,
            "max_batch": max_batch,
            "repeatable": repeatable,
            "copies": copies,
            "version": version,
            "stateful": stateful,
        }
        return FunctionModel(function, inputs, outputs, traits)

    return decorate


def check_form(model: Model) -> None:
    """Raise TypeError, with the right form, unless a model has methods that farm can call."""
    kind = type(model).__name__
    if not operations_of(model):
        own = [name for name in dir(model) if name not in dir(Model)]
        near = difflib.get_close_matches("evaluate", own, 1)
        named = f" (it defines {near[0]}: rename it)" if near else ""
        raise TypeError(
            f"class {kind} extends farm.Model, but defines no evaluate(self, inputs, config){named}"
        )
    try:
        signature = inspect.signature(model.evaluate)
    except ValueError:  # of C, without a signature
        return
    try:
        signature.bind(*[{}] * (3 if model.stateful else 2))
    except TypeError:
        form = f"evaluate(self, inputs, config{', sequence' * model.stateful})"
        raise TypeError(
            f"{kind}.evaluate takes {signature}; expected {form}, with the inputs by name, as in "
            f"inputs[{next(iter(model.inputs), 'x')!r}]"
        ) from None


def decoration(inputs: Iterable[str], name: str = "") -> str:
    """Return the advice to decorate a function that has these arguments."""
    sizes = ", ".join(f'"{n}": 1' for n in inputs if n != "config")
    where = f" above `def {name}`" if name else " above the function"
    return f'put @farm.model(inputs={{{sizes}}}, outputs={{"y": 1}}) with your sizes{where}'


def _from_config(config: Config, options: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name in options}


class PlainFunction(Model):
    """A model made of a function without `@farm.model`, by `plain_function`.

    The function gets single numbers as float, int or bool, and entries of the config as the
    arguments of their names.
    """

    def __init__(self, function: Function, *, inputs: Tensors, outputs: Tensors) -> None:
        self.function = function
        self.inputs = inputs
        self.outputs = outputs
        self.name = _name_of(function)
        self.description = inspect.getdoc(function) or ""
        taken = {*inputs, "config"}
        self.options = {name for name in _arguments(function) if name not in taken}
        """Arguments that the config may give."""
        self.takes_config = "config" in _arguments(function)
        self.config_keys = None if self.takes_config else self.options

    def takes(self, name: str) -> bool:
        """Whether an input or an entry of the config of this name reaches the function."""
        return name in self.inputs or name in self.options or self.takes_config

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Return the function's value at `inputs`."""
        values = {name: x.item() if x.ndim == 0 else x for name, x in inputs.items()}
        values |= _from_config(config, self.options)
        if self.takes_config:
            values["config"] = config
        return self.function(**values)

    def outputs_of(self, value: Any) -> Tensors:
        """Return the outputs that a value of the function has. Raises TypeError, ValueError.

        A dict has an output for each entry; any other value is one output, called like the
        function.
        """
        parts = value if isinstance(value, Mapping) else {self.name: value}
        for name in parts:
            if not isinstance(name, str):
                raise TypeError(f"an output is called {name!r}; expected a text as its name")
        arrays = {name: np.asarray(part) for name, part in parts.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "biuf":
                raise TypeError(f"output {name!r} is {parts[name]!r}; expected numbers")
        return {name: array.shape for name, array in arrays.items()}


REMEDY = (
    "annotate it, as float or Annotated[np.ndarray, 3], or use @farm.model(inputs=..., outputs=...)"
)


def plain_function(
    function: Function,
    given: Mapping[str, TensorInfo] | None = None,
    names: Container[str] = (),
    *,
    remedy: str = REMEDY,
) -> PlainFunction:
    """Return a function as a model. Its outputs are empty if its annotations do not have them.

    The arguments `float`, `int` and `bool` are single numbers; `Annotated[np.ndarray, 3]` or
    `Annotated[np.ndarray, (2, 3)]` have a shape. given: the sizes of arguments without such an
    annotation. names: further arguments that will have values, from the config. remedy: for the
    TypeError that is raised for an argument without a size.
    """
    given = given or {}
    _check_kind(function)
    hints = _hints(function)
    name = _name_of(function)
    inputs: dict[str, TensorInfo] = {}
    for argument, parameter in _arguments(function).items():
        tensor = _tensor(argument, hints.get(argument)) or given.get(argument)
        optional = parameter.default is not parameter.empty or argument in names
        if argument == "config" or (optional and argument not in given):
            continue
        if tensor is None:
            raise TypeError(f"the argument {argument!r} of {name!r} has no size: {remedy}")
        inputs[argument] = tensor
    if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()):
        inputs |= {n: tensor for n, tensor in given.items() if n not in inputs}
    output = _tensor(name, hints.get("return"))
    return PlainFunction(function, inputs=inputs, outputs={} if output is None else {name: output})


def _check_kind(function: Function) -> None:
    """Raise TypeError unless an object is a function of named arguments that returns a value."""
    name = _name_of(function)
    if isinstance(function, type):
        raise TypeError(f"{name!r} is a class; expected a function or an object, such as {name}()")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name!r} is a coroutine function; expected one that returns its value")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name!r} is a generator function; expected one that returns its value")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of C, without a signature
        raise TypeError(f"{name!r} is a function without named arguments; wrap it in one") from None
    if any(p.name == "self" and p.default is p.empty for p in parameters):
        raise TypeError(f"{name!r} is a method of a class; expected that of an object")
    required = [p for p in parameters if p.default is p.empty]
    if unnamed := [p.name for p in required if p.kind is p.POSITIONAL_ONLY]:
        given = ", ".join(unnamed)
        raise TypeError(
            f"{name!r} takes {given} by position, not by name; wrap it, as "
            f"lambda {given}: {name}({given})"
        )


def served_function(function: Function) -> PlainFunction:
    """Return a function as a model whose annotations have all its sizes. Raises TypeError."""
    found = plain_function(function)
    if not found.outputs:
        raise TypeError(f"the value of {found.name!r} has no size: {REMEDY}")
    return found


def _arguments(function: Function) -> dict[str, inspect.Parameter]:
    """Return the arguments that can be passed by name."""
    found = inspect.signature(function).parameters
    return {n: p for n, p in found.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _name_of(function: Function) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return name if name.isidentifier() else "function"


def _hints(function: Function) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # names known to type checkers only
        return {}


def _tensor(name: str, hint: Any) -> TensorInfo | None:
    """Return the size that an annotation gives, if it does."""
    if get_origin(hint) is Annotated:
        for size in get_args(hint)[1:]:
            if isinstance(size, TensorInfo):
                return replace(size, name=name)
            if isinstance(size, int) or _are_sizes(size):
                return TensorInfo(name, (size,) if isinstance(size, int) else size)
        return _tensor(name, get_args(hint)[0])
    if isinstance(hint, type):
        for kinds, dtype in (
            ((bool, np.bool_), "bool"),
            ((int, np.integer), "int64"),
            ((float, np.floating), "float64"),
        ):
            if issubclass(hint, kinds):
                return TensorInfo(name, (), dtype)
    return None


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)
