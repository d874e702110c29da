"""`farm.serve(...)`: runs a farm for the length of a block of a Python program."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from farm.client import Client, connect
from farm.descriptors import every
from farm.errors import FarmError
from farm.functions import served_function
from farm.model import Model
from farm.provision.local.supervisor import WorkersFailed
from farm.server.farm import Farm, running
from farm.settings import SettingsError, settings_of
from farm.wording import short


@contextlib.contextmanager
def serve(
    *models: str | Path | Model | type[Model] | Callable[..., Any],
    workers: int | None = None,
    port: int | None = None,
    dir: str | Path | None = None,
    **settings: Any,
) -> Iterator[Client]:
    """Run a farm of `models` on this machine for the length of the block; yield a client of it.

        with farm.serve("beam.py", workers=4) as client:
            tips = client.model("Beam").map(points)

    models: a name or file, as `farm serve` takes it, runs in `workers` processes; a Model, its
    class or a function runs in as many threads of this process. The annotations of a function have
    its sizes: float, or Annotated[np.ndarray, 3]. workers: None means one, or none with
    `dask="tcp://..."`, a Dask cluster that runs the named models. port: HTTP port for other
    clients, 0 for a free one; None: no HTTP. dir: the run folder; None: a temporary one. settings:
    other `Settings`, and options of protocols such as `mip=["Beam=127.0.0.1:9000"]`.

    Raises Unavailable or WorkersFailed if the farm does not start, and SettingsError.
    """
    specs = [str(model) for model in models if isinstance(model, str | Path)]
    given = [
        model() if isinstance(model, type) and issubclass(model, Model) else model
        for model in models
        if not isinstance(model, str | Path)
    ]
    try:
        for name, number in (("workers", workers), ("port", port)):
            if not isinstance(number, int | None):
                raise SettingsError(f"{name} is {number!r}; expected a whole number")
        made = [_made(model) for model in given]
    except (TypeError, ValueError) as error:
        raise short(error) from None
    objects = {model.name or type(model).__name__: model for model in made}
    if len(specs) + len(objects) < max(1, len(models)):
        raise ValueError(f"serve needs models, each with a name of its own; got {models}")
    if settings.get("dask") and objects:
        raise ValueError("a Dask cluster loads models itself: name them, such as 'model.py:Beam'")
    if workers is None:
        workers = 0 if settings.get("dask") else 1
    with contextlib.ExitStack() as stack:
        if dir is None:
            dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="farm-"))
        values = dict(dir=Path(dir), workers=workers, port=port or 0, **settings)
        try:
            chosen = settings_of(values, [o for protocol in every() for o in protocol.options])
        except SettingsError as error:
            raise short(error) from None
        farm = Farm(specs, chosen, objects=objects, doors=port is not None)
        try:
            stack.enter_context(running(farm))
            client = stack.enter_context(connect(farm.connection_file))
        except (FarmError, WorkersFailed) as error:  # raised in another thread
            raise short(error) from None
        yield client


def _made(model: Model | Callable[..., Any]) -> Model:
    return model if isinstance(model, Model) else served_function(model)
