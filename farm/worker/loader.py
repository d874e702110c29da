"""Loads the models that a user specifies: from files, packages, running servers.

FILE.py:NAME            a Model class or object, a @farm.model function, an umbridge model
FILE.py the one model in the file, or all that it passes to umbridge.serve_models
package.module:NAME the same in a package or module; the current folder is searched first
package.module the one model in the module
FILE.onnx FILE.pt2      a neural network or other graph in a file
http://HOST:PORT        all models of a running UM-Bridge server
kserve+http://HOST:PORT all models of a running KServe v2 server
graphpipe+http://HOST   the model of a running GraphPipe server
mip://HOST:PORT         the model of a running MIP server, of a text or image; mip+unix:/path too
MODEL@http://HOST:PORT  one of several, also MODEL@kserve+http://HOST:PORT, MODEL@graphpipe+...
MODEL@URL,URL           several servers of one model, which share its calls
ALIAS=any of these      the same model under another name
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from farm.descriptors import Objects, built_in, resolve
from farm.errors import FarmError
from farm.model import Model
from farm.worker.file_version import version_of_file
from farm.worker.frameworks.onnx import OnnxModel
from farm.worker.frameworks.torch import TorchModel
from farm.worker.servers import forms, models_of, urls_of

ALIAS = re.compile(r"(?P<alias>[A-Za-z_][\w.-]*)=(?P<spec>.+)", re.DOTALL)
GRAPHS: Mapping[str, Callable[[Path], Model]] = {
    ".onnx": OnnxModel,
    ".pt": TorchModel,
    ".pt2": TorchModel,
}
"""The model class for each extension of another library's files."""
SERVED = "__farm_served__"
"""The attribute of a module that holds the models it passed to `umbridge.serve_models`."""
NOT_THEIRS = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


class LoadError(ValueError):
    """A model that the user specified cannot be loaded; the message is one line for that user.

    detail: the traceback if the user's own code raised; empty if the specification is wrong.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def _forms() -> str:
    """Return the forms of model specifications, for messages."""
    files = "FILE.py:NAME, FILE.py, package.module:NAME, FILE.onnx, FILE.pt2"
    return f"{files}, {', '.join(forms())}, MODEL@URL, MODEL@URL,URL or ALIAS=any of these"


def load_models(specs: Sequence[str], *, comm: Any = None) -> dict[str, Model]:
    """Return the models that `specs` name, by the name they are served under. Raises LoadError.

    comm: the communicator of the MPI group that runs them: passed to the constructor of a class if
    that has an argument `comm`, and set as the attribute `comm` of every object.
    """
    models: dict[str, Model] = {}
    for spec in specs:
        for name, model in _load(spec, comm).items():
            if name in models:
                raise LoadError(
                    f"two models are called {name!r}, the second comes from {spec!r}; "
                    f"name it otherwise: OTHER={spec}"
                )
            models[name] = model
    if not models:
        raise LoadError(f"no model is given; expected {_forms()}")
    return models


def located(spec: str) -> str:
    """Return the spec with an absolute path, for a process in another folder."""
    named = ALIAS.fullmatch(spec)
    alias, where = (named["alias"] + "=", named["spec"]) if named else ("", spec)
    path, colon, name = where.rpartition(":") if ":" in where else (where, "", "")
    if urls_of(where) or Path(path).suffix not in (".py", *GRAPHS):
        return spec
    return f"{alias}{Path(path).expanduser().absolute()}{colon}{name}"


def is_package(spec: str) -> bool:
    """Whether a spec names a module or package, which is searched in the current folder first."""
    named = ALIAS.fullmatch(spec)
    where = named["spec"] if named else spec
    path = where.rpartition(":")[0] if ":" in where else where
    return not urls_of(where) and Path(path).suffix not in (".py", *GRAPHS)


def source_of(spec: str) -> str:
    """Return the file or the module that a spec names; "" if it names servers."""
    path = _file_of(spec)
    if path.suffix in (".py", *GRAPHS):
        return str(path.resolve())
    return "" if urls_of(spec) else str(path)


def version_of(spec: str) -> str:
    """Return the version that a model without one of its own has by its file; it is not loaded.

    "" if the spec names no file, or the file has no version.
    """
    path = _file_of(spec)
    content = _content(path)
    return "" if content is None else version_of_file(path, content)


def most_servers(specs: Sequence[str]) -> int:
    """Return the largest number of servers that one model has; 0 if there are none."""
    named = [ALIAS.fullmatch(spec) for spec in specs]
    wheres = [m["spec"] if m else spec for m, spec in zip(named, specs, strict=True)]
    return max([len(urls_of(where)) for where in wheres], default=0)


def _load(spec: str, comm: Any) -> Mapping[str, Model]:
    renamed = ALIAS.fullmatch(spec)
    if renamed:
        found = _load(renamed["spec"], comm)
        if len(found) != 1:
            raise LoadError(
                f"{spec!r} gives one name to {len(found)} models ({_listed(found)}); "
                "choose one as MODEL@URL"
            )
        return dict(zip([renamed["alias"]], found.values(), strict=True))
    if urls_of(spec):
        try:
            return models_of(spec)
        except FarmError as error:
            raise LoadError(f"{spec}: {error}") from error
    file = _file_of(spec)
    before = _content(file)
    if Path(spec).suffix in GRAPHS:
        version = version_of_file(file, before) if before is not None else ""
        model = _graph(Path(spec), spec)
        _set_version([model], file, before)
        if model.version != version:  # the files of its weights changed meanwhile
            model.version = ""
        return {model.name: model}
    module, name = _module(spec)
    served: Sequence[Any] = getattr(module, SERVED, ())
    if name:
        objects = [_named(module, name, served, spec)]
    else:
        objects = list(served) or [_only_model(module, spec)]
    models = [_as_model(found, name, spec, comm) for found in objects]
    _set_version(models, file, before)
    return {model.name or type(model).__name__: model for model in models}


def _file_of(spec: str) -> Path:
    """Return the path in a spec of a file."""
    named = ALIAS.fullmatch(spec)
    where = named["spec"] if named else spec
    return Path(where.rpartition(":")[0] if ":" in where else where).expanduser()


def _content(path: Path) -> bytes | None:
    """Return the content of a model's file; None if the spec names none."""
    if path.suffix not in (".py", *GRAPHS):
        return None
    try:
        return path.read_bytes()
    except OSError:
        return None


def _set_version(models: Sequence[Model], path: Path, before: bytes | None) -> None:
    """Set the version of models that have none, if their file had the same content all along."""
    without = [model for model in models if not model.version]
    if before is None or not without or _content(path) != before:
        return
    version = version_of_file(path, before)
    for model in without:
        model.version = version


def _graph(path: Path, spec: str) -> Model:
    """Return the model in a file of another library."""
    path = _existing(path, spec)
    try:
        return GRAPHS[path.suffix](path)
    except (ValueError, ImportError) as error:
        raise LoadError(f"{spec}: {error}") from error


def _module(spec: str) -> tuple[ModuleType, str]:
    """Return the module that a spec names, and the name of the object in it or ''."""
    where, colon, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if colon and not name.isidentifier():
        raise LoadError(f"{spec!r} has no object name after the colon; expected {_forms()}")
    if where.endswith(".py"):
        return _module_of_file(Path(where), spec), name
    if not all(part.isidentifier() for part in where.split(".")):
        raise LoadError(f"{spec!r} is not a model; expected {_forms()}")
    return _module_of_package(where, spec), name


def _module_of_file(path: Path, spec: str) -> ModuleType:
    path = _existing(path, spec).resolve()
    _look_in(path.parent)  # so that the file may import its neighbours
    module_name = path.stem
    known = sys.modules.get(module_name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        # A user's file may have the name of a module that is loaded already, such as random.py.
        module_name += "_" + hashlib.sha256(str(path).encode()).hexdigest()[:8]
        if module_name in sys.modules:
            return sys.modules[module_name]
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # before it runs: dataclasses and pickle look it up
    with _models_instead_of_servers(str(path)) as served:
        try:
            module_spec.loader.exec_module(module)
        except BaseException as error:
            if not (served and isinstance(error, SystemExit)):  # raised after a server has ended
                del sys.modules[module_name]
                raise _crash(f"loading {str(path)!r}", error) from error
    setattr(module, SERVED, tuple(served))
    return module


@contextlib.contextmanager
def _models_instead_of_servers(where: str) -> Iterator[list[Any]]:
    """Collect, within the block, models that a file passes to a package's own server in a list."""
    served: list[Any] = []
    with contextlib.ExitStack() as stack:
        for kind in _kinds():
            stack.enter_context(resolve(kind.while_loading)(where, served))
        yield served


def _kinds() -> list[Objects]:
    """Return the kinds of objects of other packages that are models."""
    return [protocol.objects for protocol in built_in() if protocol.objects is not None]


def _kind_of(value: Any) -> Objects | None:
    return next((kind for kind in _kinds() if kind.include(value)), None)


def _existing(path: Path, spec: str) -> Path:
    path = path.expanduser()
    if not path.is_file():
        raise LoadError(f"{spec}: there is no file {str(path)!r} (looked from {Path.cwd()})")
    return path


def _module_of_package(name: str, spec: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        with _models_instead_of_servers(name) as served:
            module = importlib.import_module(name)
        if served:
            setattr(module, SERVED, tuple(served))
        return module
    except ModuleNotFoundError as error:
        # Only if this module itself is missing: a missing import inside it is a crash of its own.
        if error.name is not None and (name + ".").startswith(error.name + "."):
            raise LoadError(
                f"{spec}: there is no module {error.name!r} "
                f"(looked in {Path.cwd()} and the installed packages); a file ends with .py"
            ) from error
        raise _crash(f"importing {name!r}", error) from error
    except BaseException as error:
        raise _crash(f"importing {name!r}", error) from error


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _named(module: ModuleType, name: str, served: Sequence[Any], spec: str) -> Any:
    by_name = {str(getattr(model, "name", "")): model for model in served}
    by_class = {type(model).__name__: model for model in served}
    if name in by_name or name in by_class:
        return by_name.get(name, by_class.get(name))
    try:
        return getattr(module, name)
    except AttributeError:
        candidates = by_name or _candidates(module)
        there = f"the models there are {_listed(candidates)}" if candidates else "nor any model"
        raise LoadError(f"{spec}: there is no {name!r} in {_origin(module)}; {there}") from None


def _only_model(module: ModuleType, spec: str) -> Any:
    candidates = _candidates(module)
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if candidates:
        first = next(iter(candidates))
        raise LoadError(
            f"{spec} holds {len(candidates)} models, {_listed(candidates)}; "
            f"choose one: {spec}:{first}"
        )
    functions = [
        function
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    ]
    if len(functions) == 1:
        raise LoadError(f"{spec} holds no model; {_decorate(functions[0])}")
    raise LoadError(
        f"{spec} holds no model; expected a class that extends farm.Model, "
        f"a function under @farm.model(...) or {_kinds_shown()}"
    )


def _kinds_shown() -> str:
    return " or ".join(f"an object of {kind.kind}" for kind in _kinds())


def _candidates(module: ModuleType) -> dict[str, Any]:
    """Return a module's models by variable: its objects, and its own classes without an object."""
    objects: dict[str, Any] = {}
    classes: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if _is_model(value):
            if not any(value is known for known in objects.values()):
                objects[name] = value
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            classes[name] = value
    made = {type(value) for value in objects.values()}
    return objects | {n: c for n, c in classes.items() if _is_model_class(c) and c not in made}


def _is_model(value: Any) -> bool:
    return not inspect.isclass(value) and (isinstance(value, Model) or _kind_of(value) is not None)


def _is_model_class(value: type) -> bool:
    if issubclass(value, Model):
        streams = callable(getattr(value, "stream", None))
        return value.evaluate is not Model.evaluate or streams or value.operations is not None
    return _kind_of(value) is not None


def _as_model(value: Any, name: str, spec: str, comm: Any) -> Model:
    if inspect.isclass(value):
        if not (issubclass(value, Model) or _kind_of(value)):
            kinds = " nor ".join(kind.kind for kind in _kinds())
            raise LoadError(
                f"{spec}: class {value.__name__} extends neither farm.Model nor {kinds}"
            )
        value = _made(value, spec, comm)
    if comm is not None:
        value.comm = comm
    if isinstance(value, Model):
        return value
    if (kind := _kind_of(value)) is not None:
        try:
            model: Model = resolve(kind.adapt)(value)
            return model
        except Exception as error:
            raise _crash(f"asking {name or type(value).__name__!r} what it is", error) from error
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        raise LoadError(f"{spec}: {name!r} is a plain function; {_decorate(value)}")
    raise LoadError(
        f"{spec}: {name!r} is a {type(value).__name__}; expected a farm.Model class or object, "
        f"a function under @farm.model(...) or {_kinds_shown()}"
    )


def _made(cls: type, spec: str, comm: Any) -> Any:
    arguments: dict[str, Any] = {}
    try:
        signature = inspect.signature(cls)
        if "comm" in signature.parameters and comm is not None:
            arguments["comm"] = comm
        signature.bind(**arguments)
    except TypeError as error:
        if "comm" in signature.parameters and comm is None:
            raise LoadError(
                f"{spec}: {cls.__name__}() needs an MPI communicator ({error}); "
                "start it with --mpi RANKS"
            ) from None
        raise LoadError(
            f"{spec}: {cls.__name__}() needs arguments ({error}); "
            f"make the object in the file and name it: model = {cls.__name__}(...)"
        ) from None
    except ValueError:
        pass  # no signature available; the constructor's own error will tell
    try:
        return cls(**arguments)
    except BaseException as error:
        raise _crash(f"making {cls.__name__}()", error) from error


def _decorate(function: Any) -> str:
    try:
        parameters = [p for p in inspect.signature(function).parameters if p != "config"]
    except (TypeError, ValueError):
        parameters = ["x"]
    inputs = ", ".join(f'"{p}": 1' for p in parameters)
    return (
        f'put @farm.model(inputs={{{inputs}}}, outputs={{"y": 1}}) '
        f"with your sizes above `def {function.__name__}`"
    )


def _crash(doing: str, error: BaseException) -> LoadError:
    """Return the error for a crash of the user's own code: one line, and the traceback."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        # The last line of the user's own code says more than one deep inside a library.
        theirs = [f for f in frames if not f.filename.startswith(("<", *NOT_THEIRS))]
        last = (theirs or list(frames))[-1]
        where = f"{last.filename}:{last.lineno}"
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return LoadError(
        f"{doing} raised {type(error).__name__}: {text} ({where})",
        detail="".join(traceback.format_exception(error)),
    )


def _origin(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or module.__name__)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names)
