"""The same answers from the farm around a loop and from a farm elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Operation
from farm.errors import ModelNotFound
from farm.experiment.evaluators import Remote
from tests.experiment.subjects import Bowl, dispatching
from tests.loops import on_loop

CALL = Call("bowl", Operation.EVALUATE, (np.array([0.3]), np.array([0.2])))


@on_loop
async def test_the_farm_around(tmp_path: Path) -> None:
    async with dispatching(Bowl(), 3) as around:
        assert await around.places("bowl") == 3
        assert await around.places("ball") == 1
        assert [t.name for t in (await around.describe("bowl", "{}")).inputs] == ["x", "y"]
        assert (await around.submit(CALL, NO_HINTS)).outputs[0] == pytest.approx(-0.25)
        with pytest.raises(ModelNotFound):
            await around.describe("ball", "{}")


def test_a_farm_elsewhere(tmp_path: Path) -> None:
    @on_loop
    async def check() -> None:
        remote = Remote(client)
        assert await remote.places("bowl") == 2
        assert [t.name for t in (await remote.describe("bowl", "{}")).inputs] == ["x", "y"]
        assert (await remote.submit(CALL, NO_HINTS)).outputs[0] == pytest.approx(-0.25)
        with pytest.raises(ModelNotFound):
            await remote.describe("ball", "{}")

    with farm.serve(Bowl(), workers=2) as client:
        check()
