"""Loads the models that a user specifies: from files, packages, running servers.

FILE.py:NAME            a Model class or object, a @farm.model function, an umbridge model
FILE.py the one model in the file, or all that it passes to umbridge.serve_models
package.module:NAME the same in a package or module; the current folder is searched first
package.module the one model in the module
FILE.onnx FILE.pt2      a neural network or other graph in a file
FILE.skops FILE.ubj     a fitted model of scikit-learn, of XGBoost (FILE.json too)
FILE.fmu                a simulation unit of FMI 2 or 3
FILE.R FILE.jl          a script of the line protocol, which Rscript or julia runs
lines:COMMAND           any program of the line protocol
http://HOST:PORT        all models of a running UM-Bridge server
kserve+http://HOST:PORT all models of a running KServe v2 server
graphpipe+http://HOST   the model of a running GraphPipe server
mip://HOST:PORT         the model of a running MIP server, of a text or image; mip+unix:/path too
docker://IMAGE          all models of an UM-Bridge server in a container; podman, apptainer too
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
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from farm.descriptors import Objects, built_in, resolve
from farm.errors import FarmError
from farm.functions import check_form, decoration
from farm.model import Model
from farm.worker.file_version import version_of_file
from farm.worker.kinds import FILES, PICKLES
from farm.worker.servers import models_of
from farm.worker.specs import Spec, all_forms, content_of, parsed

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


def load_models(specs: Sequence[str], *, comm: Any = None) -> dict[str, Model]:
    """Return the models that `specs` name, by the name they are served under. Raises LoadError.

    comm: the communicator of the MPI group that runs them: passed to the constructor of a class if
    that has an argument `comm`, and set as the attribute `comm` of every object.
    """
    models: dict[str, Model] = {}
    for spec in specs:
        for name, model in _load(spec, comm).items():
            if comm is not None and model.stateful:
                raise LoadError(
                    f"{spec}: model {name!r} is stateful, which one on several MPI ranks cannot "
                    "be; serve it without --mpi"
                )
            if name in models:
                raise LoadError(
                    f"two models are called {name!r}, the second comes from {spec!r}; "
                    f"name it otherwise: OTHER={spec}"
                )
            models[name] = model
    if not models:
        raise LoadError(f"no model is given; expected {all_forms()}")
    return models


def _load(spec: str, comm: Any) -> Mapping[str, Model]:
    parts = parsed(spec)
    if parts.alias:
        found = _load(parts.text, comm)
        if len(found) != 1:
            raise LoadError(
                f"{spec!r} gives one name to {len(found)} models ({_listed(found)}); "
                "choose one as MODEL@URL"
            )
        return dict(zip([parts.alias], found.values(), strict=True))
    if parts.urls or parts.command is not None:
        try:
            if parts.urls:
                return models_of(spec)
            from farm.worker.lines import models_of_command  # starts programs: imports much

            return models_of_command(parts.command or "")
        except (FarmError, ValueError) as error:
            raise LoadError(f"{spec}: {error}", detail=getattr(error, "detail", "")) from error
    before = content_of(parts)
    if Path(spec).suffix in (*FILES, *PICKLES):
        return _from_file(parts, before)
    module, name = _module(spec)
    served: Sequence[Any] = getattr(module, SERVED, ())
    if name:
        objects = [_named(module, name, served, spec)]
    else:
        objects = list(served) or [_only_model(module, spec)]
    models = [_as_model(found, name, spec, comm) for found in objects]
    _set_version(models, parts, before)
    return {model.name or type(model).__name__: model for model in models}


def _from_file(parts: Spec, before: bytes | None) -> Mapping[str, Model]:
    """Return the model in a file of another library or language."""
    version = version_of_file(parts.path, before) if before is not None else ""
    model = _opened(parts)
    _set_version([model], parts, before)
    if model.version != version:  # the files of its weights changed meanwhile
        model.version = ""
    return {model.name: model}


def _set_version(models: Sequence[Model], parts: Spec, before: bytes | None) -> None:
    """Set the version of models that have none, if their file had the same content all along."""
    without = [model for model in models if not model.version]
    if before is None or not without or content_of(parts) != before:
        return
    version = version_of_file(parts.path, before)
    for model in without:
        model.version = version


def _opened(parts: Spec) -> Model:
    path = _existing(parts.path, parts.text)
    if path.suffix in PICKLES:
        raise LoadError(
            f"{parts.text} is a pickle, which runs whatever program its author put there when it "
            "is read; save the model by skops.io.dump(model, 'model.skops'), or convert it with "
            "skl2onnx, and serve that file"
        )
    try:
        model: Model = resolve(FILES[path.suffix].model)(path)
        return model
    except (ValueError, ImportError, FarmError) as error:
        detail = getattr(error, "detail", "")
        raise LoadError(f"{parts.text}: {error}", detail=detail) from error


def _module(spec: str) -> tuple[ModuleType, str]:
    """Return the module that a spec names, and the name of the object in it or ''."""
    where, colon, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
    if colon and not name.isidentifier():
        raise LoadError(f"{spec!r} has no object name after the colon; expected {all_forms()}")
    if where.endswith(".py"):
        return _module_of_file(Path(where), spec), name
    if not all(part.isidentifier() for part in where.split(".")):
        raise LoadError(f"{spec!r} is not a model; expected {all_forms()}")
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
    loader = _FromSource(module_name, str(path))
    module_spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
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


class _FromSource(SourceFileLoader):
    """Loads a file as it is now.

    Python's kept byte code is that of another text if both have the same second and size.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


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
        origin = getattr(module, "__file__", None) or module.__name__
        raise LoadError(f"{spec}: there is no {name!r} in {origin}; {there}") from None


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
    unfinished = [value for value in _own_classes(module).values() if issubclass(value, Model)]
    if len(unfinished) == 1:
        return unfinished[0]  # an error, as it has no evaluate
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
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if _is_model(value) and not any(value is known for known in objects.values()):
            objects[name] = value
    made = {type(value) for value in objects.values()}
    classes = _own_classes(module)
    return objects | {n: c for n, c in classes.items() if _is_model_class(c) and c not in made}


def _own_classes(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isclass(value)
        and value.__module__ == module.__name__
    }


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
        try:
            check_form(value)
        except TypeError as error:
            raise LoadError(f"{spec}: {error}") from None
        return value
    if (kind := _kind_of(value)) is not None:
        try:
            model: Model = resolve(kind.adapt)(value)
            return model
        except Exception as error:
            raise _crash(f"asking {name or type(value).__name__!r} what it is", error) from error
    if inspect.isfunction(value) or inspect.isbuiltin(value):
        raise LoadError(f"{spec}: {name!r} is a plain function; {_decorate(value)}")
    what = "module" if isinstance(value, ModuleType) else type(value).__name__
    raise LoadError(
        f"{spec}: {name!r} is a {what}; expected a farm.Model class or object, "
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
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = ["x"]
    return decoration(parameters, function.__name__)


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


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names)
