"""Tensors between regions and calls: bytes, bounds, memory, threads, regions that are cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farm.bodies.body import HEAVY_BYTES
from farm.bodies.held import HeldBytes, Share
from farm.bodies.readers import Reads
from farm.bodies.unpacking import Refused
from farm.call import Array, Hints, Result
from farm.errors import InvalidInput
from farm.protocols.kserve.request import (
    IN_REGION,
    InferInput,
    InferRequest,
    RequestedOutput,
    Wish,
    WishedOutput,
)
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carrier
from farm.protocols.kserve.shared_memory.places import Place
from farm.protocols.kserve.shared_memory.regions import Regions, is_offered
from farm.protocols.kserve.tensors import raw_bytes
from tests.support.coroutines import until
from tests.support.shared_objects import SharedObject, open_of, shared_object

pytestmark = pytest.mark.skipif(not is_offered(), reason="this system has no /dev/shm")

LONG = 4 * HEAVY_BYTES


@pytest.fixture
def made() -> Iterator[SharedObject]:
    with shared_object(LONG) as made:
        yield made


@pytest.fixture
def regions(made: SharedObject) -> Regions:
    regions = Regions()
    regions.register("r", made.key, 0, LONG)
    return regions


def parameters(size: int, offset: int = 0, region: str = "r") -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }


def placed(
    name: str, shape: tuple[int, ...], size: int, offset: int = 0, **more: Any
) -> InferInput:
    datatype = more.pop("datatype", "FP64")
    return InferInput(name, datatype, shape, IN_REGION, parameters(size, offset, **more))


def asked(*inputs: InferInput, **outputs: dict[str, Any]) -> InferRequest:
    named = [RequestedOutput(name, of) for name, of in outputs.items()]
    return InferRequest("m", inputs, outputs=named)


def wish_for(*places: Place, datatype: str = "FP64") -> Wish:
    """Wish for outputs `y` and `z` at these places."""
    named = zip("yz", places, strict=False)
    outputs = [WishedOutput(i, name, datatype, True, at) for i, (name, at) in enumerate(named)]
    return Wish("m", None, outputs)


async def read(carrier: Carrier, *inputs: InferInput) -> list[Array]:
    async with carrier.carried(asked(*inputs), True, Hints("c")) as carried:
        return [tensor.array for tensor in carried.request.inputs]


async def test_inputs_are_copies_of_what_the_region_holds(
    made: SharedObject, regions: Regions
) -> None:
    for count in (3, LONG // 8):
        values = np.arange(float(count))
        made.write(values.tobytes())
        (array,) = await read(Carrier(regions), placed("x", (count,), 8 * count))
        made.write(bytes(8 * count))  # as clients may at any time
        assert np.array_equal(array, values)
        assert not array.flags.writeable
    made.write(np.array([1, 2], np.int32).tobytes(), 16)
    sent = InferInput("b", "FP64", (1,), np.array([5.0]), {"binary_data_size": 8})
    a = placed("a", (2, 1), 8, 16, datatype="INT32")
    async with Carrier(regions).carried(asked(a, sent), True, Hints("c")) as carried:
        first, second = carried.request.inputs
    assert (first.array.tolist(), first.parameters) == ([[1], [2]], {})
    assert second is sent, "it has no place"


async def test_texts_have_their_lengths_before_them(made: SharedObject, regions: Regions) -> None:
    texts = np.array([b"", b"ab", "é".encode()], object)
    raw = raw_bytes(texts)
    made.write(raw)
    (array,) = await read(Carrier(regions), placed("x", (3,), len(raw), datatype="BYTES"))
    assert array.tolist() == texts.tolist()
    with pytest.raises(InvalidInput, match="input 'x' has 2 bytes after its 3 elements"):
        await read(Carrier(regions), placed("x", (3,), len(raw) + 2, datatype="BYTES"))


async def test_many_texts_are_split_and_joined_in_a_reader(
    made: SharedObject, regions: Regions
) -> None:
    done: list[str] = []

    class Noting(Reads):
        def execute(self, function: Any, *arguments: Any, **rest: Any) -> Any:
            done.append(function.__name__)
            return super().execute(function, *arguments, **rest)

    texts = np.array([b"x" * 60] * 8000, object)
    raw = raw_bytes(texts)
    assert len(raw) > HEAVY_BYTES
    made.write(raw)
    x = placed("x", texts.shape, len(raw), datatype="BYTES")
    carrier = Carrier(regions, Noting())
    async with carrier.carried(asked(x, y=parameters(len(raw))), True, Hints("c")) as carried:
        (tensor,) = carried.request.inputs
        assert tensor.array.tolist() == texts.tolist()
        made.write(bytes(len(raw)))
        wish = wish_for(Place("r", 0, len(raw)), datatype="BYTES")
        await carried.put(wish, Result((tensor.array,)))
    assert made.read()[: len(raw)] == raw
    assert done == ["raw_array", "raw_bytes"]


async def test_long_copies_leave_the_event_loop_free(made: SharedObject, regions: Regions) -> None:
    threads: list[threading.Thread] = []
    file = regions.find("r").file

    class Noting:
        size = file.size

        def read(self, at: int, into: memoryview) -> int:
            threads.append(threading.current_thread())
            return file.read(at, into)

        def write(self, at: int, data: Any) -> None:
            threads.append(threading.current_thread())
            file.write(at, data)

    object.__setattr__(regions.find("r"), "file", Noting())
    for count, is_here in ((HEAVY_BYTES // 8, True), (HEAVY_BYTES // 8 + 1, False)):
        size = 8 * count
        x = placed("x", (count,), size)
        threads.clear()
        async with Carrier(regions).carried(
            asked(x, y=parameters(size)), True, Hints("c")
        ) as carried:
            wish = wish_for(Place("r", 0, size))
            await carried.put(wish, Result((carried.request.inputs[0].array,)))
        assert [thread is threading.main_thread() for thread in threads] == [is_here] * 2


async def test_outputs_are_written_and_left_out(made: SharedObject, regions: Regions) -> None:
    wish = Wish(
        "m",
        "7",
        [
            WishedOutput(1, "z", "INT32", True, Place("r", 8, 24)),
            WishedOutput(0, "y", "FP64", False),
        ],
        lead=(1,),
    )
    y, z = np.array([1.5]), np.arange(4, dtype=np.int32)[::-1]  # not in the order of memory
    request = asked(placed("x", (0,), 0), z=parameters(24, 8))
    async with Carrier(regions).carried(request, True, Hints("c")) as carried:
        left, result = await carried.put(wish, Result((y, z), run_time_s=2.0))
    assert made.read()[8:24] == np.array([3, 2, 1, 0], np.int32).tobytes()
    assert made.read()[24:32] == bytes(8)
    assert left.outputs[0].place == Place("r", 8, 24, (1, 4))
    assert left.outputs[1] == wish.outputs[1]
    assert result.outputs[0] is y
    assert not result.outputs[1].size
    assert result.run_time_s == 2.0
    assert wish.outputs[0].place == Place("r", 8, 24)  # for the next answer of a stream


async def test_an_output_that_is_too_large_writes_nothing(
    made: SharedObject, regions: Regions
) -> None:
    before = made.read()
    wish = wish_for(Place("r", 0, 8), Place("r", 8, 23))
    request = asked(y=parameters(8), z=parameters(23, 8))
    async with Carrier(regions).carried(request, True, Hints("c")) as carried:
        with pytest.raises(
            InvalidInput, match=r"output 'z' \(23 bytes\) should be at least 24 bytes to hold the"
        ):
            await carried.put(wish, Result((np.ones(1), np.ones(3))))
    assert made.read() == before


async def test_who_is_not_the_owner_is_refused_before_anything_is_looked_up(
    regions: Regions,
) -> None:
    unknown = asked(placed("x", (1,), 8, region="q")), asked(y=parameters(8, region="q"))
    for request in (asked(placed("x", (1,), 8)), *unknown):
        with pytest.raises(Refused, match="programs of the user") as caught:
            async with Carrier(regions).carried(request, False, Hints("c")):
                raise AssertionError
        assert caught.value.status == 403
    for request in unknown:
        with pytest.raises(Refused, match="Unable to find shared memory region: 'q'"):
            async with Carrier(regions).carried(request, True, Hints("c")):
                raise AssertionError


async def test_an_object_that_is_cut_fails_its_requests_alone(
    made: SharedObject, regions: Regions
) -> None:
    carrier = Carrier(regions)
    request = asked(placed("x", (2,), 16), y=parameters(8, 16))
    wish = wish_for(Place("r", 16, 8))
    async with carrier.carried(request, True, Hints("c")) as carried:
        made.cut(20)  # while the model runs
        with pytest.raises(InvalidInput, match=r"region 'r' was cut: its object .* holds 20 of"):
            await carried.put(wish, Result((np.ones(1),)))
    assert made.path.stat().st_size == 20  # not made larger by writing
    with pytest.raises(InvalidInput, match="was cut"):
        await read(carrier, placed("x", (1,), 8, 16))
    made.write(np.array([3.0]).tobytes())
    (array,) = await read(carrier, placed("x", (1,), 8))
    assert array.tolist() == [3.0]
    region = regions.find("r")
    file = region.file
    made.cut(LONG)

    class CutAfterTheCheck:
        """Reports the size that it had before."""

        size = LONG

        def read(self, at: int, into: memoryview) -> int:
            made.cut(8)
            return file.read(at, into)

    object.__setattr__(region, "file", CutAfterTheCheck())
    with pytest.raises(InvalidInput, match="was cut"):
        await read(carrier, placed("x", (LONG // 8,), LONG))


async def test_requests_wait_for_memory_and_give_it_back(regions: Regions) -> None:
    class Counting(HeldBytes):
        asked = 0

        def reserve(self, size: int, on_granted: Any) -> Share:
            self.asked += 1
            return super().reserve(size, on_granted)

    held = Counting(LONG)
    carrier = Carrier(regions, held=held)
    whole = asked(placed("x", (LONG // 8,), LONG))
    order: list[str] = []

    async def second() -> None:
        async with carrier.carried(whole, True, Hints("c")):
            order.append("second")

    async with carrier.carried(whole, True, Hints("c")):
        assert held.used == LONG
        waiting = asyncio.create_task(second())
        cancelled = asyncio.create_task(second())
        await until(lambda: held.asked == 3)
        await read(carrier, placed("x", (1,), 8))  # a short one needs no room
        cancelled.cancel()
        order.append("first")
    await waiting
    assert order == ["first", "second"]
    with pytest.raises(InvalidInput, match="expected 8"):
        await read(carrier, placed("x", (1,), LONG))
    assert held.used == 0
    assert not held.contended


async def test_closing_forgets_the_regions_but_those_that_a_request_uses(
    made: SharedObject, regions: Regions
) -> None:
    carrier = Carrier(regions)
    await read(carrier, placed("x", (LONG // 8,), LONG))  # in a thread
    wish = wish_for(Place("r", 0, 8))
    async with carrier.carried(asked(y=parameters(8)), True, Hints("c")) as carried:
        carrier.close()
        assert regions.status() == []
        assert open_of(made.path) == 1
        await carried.put(wish, Result((np.array([2.5]),)))
    assert made.read()[:8] == np.array([2.5]).tobytes()
    del carried
    assert open_of(made.path) == 0
