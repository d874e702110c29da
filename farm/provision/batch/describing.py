"""Describes the models of an elastic farm before its first job, in processes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from farm.call import ModelInfo
from farm.errors import Unavailable
from farm.provision.batch.standing import KindState
from farm.provision.local.describing import describe


class Describing:
    """The descriptions of models that no worker has described yet, from `start` to `cancel`."""

    def __init__(
        self,
        expect: Callable[[Sequence[ModelInfo]], None],
        note: Callable[[str, str, str], None],
    ) -> None:
        """expect: takes the models that workers will have; note: records an event for the user."""
        self._expect = expect
        self._note = note
        self._task: asyncio.Task[None] | None = None

    def start(self, kinds: Iterable[KindState]) -> asyncio.Task[None]:
        """Describe the models of those kinds whose models are unknown; the task ends then."""
        unknown = [kind for kind in kinds if kind.models is None]
        for kind in unknown:
            kind.describing = True
        self._task = asyncio.get_running_loop().create_task(self._all(unknown))
        return self._task

    def cancel(self) -> None:
        """End the processes."""
        if self._task is not None:
            self._task.cancel()

    async def _all(self, kinds: Iterable[KindState]) -> None:
        await asyncio.gather(*map(self._one, kinds))

    async def _one(self, kind: KindState) -> None:
        infos: Sequence[ModelInfo] = ()
        try:
            infos = await describe(kind.settings.models)
        except Unavailable as error:
            text = f"{error}; the farm knows these models once a worker has joined"
            self._note("not described", kind.settings.name, text)
        finally:
            kind.describing = False
        if kind.models is None and infos:
            kind.knows(info.name for info in infos)
            self._expect(infos)
