"""Copies tensors from regions of shared memory into requests, and from answers into regions.

The regions of a request's inputs and outputs are looked up when it arrives, so unregistering them
afterwards does not affect it. Long copies happen in threads, which leave the interpreter to others;
texts of BYTES are split and joined in reader processes when there are many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from farm.bodies.body import HEAVY_BYTES, QUICK_BYTES
from farm.bodies.held import FREE_BYTES, HeldBytes, Share
from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import carried_out, is_long
from farm.call import Array, Hints, Result
from farm.encoding.tensors import shown
from farm.errors import InvalidInput
from farm.protocols.kserve.request import InferInput, InferRequest, Wish, WishedOutput
from farm.protocols.kserve.shared_memory.places import Place, place_of
from farm.protocols.kserve.shared_memory.regions import Region, Regions, check_owner
from farm.protocols.kserve.tensors import BYTES, Raw, raw_array, raw_bytes, raw_view

MOST_BYTES = 1 << 30
"""Bytes of all inputs of a request, by default: as a body may have."""

THREADS = 2

NO_DATA = np.empty(0, np.uint8)
"""Stands in an answer for a tensor that is in a region."""

Outcome = TypeVar("Outcome")

_Input = tuple[InferInput, Place, Region]


class Carrier:
    """Carries tensors between the registered regions and calls. For one event loop."""

    def __init__(
        self,
        regions: Regions,
        readers: Reads = READS_HERE,
        *,
        most_bytes: int = MOST_BYTES,
        held: HeldBytes | None = None,
    ) -> None:
        """most_bytes: of all inputs of a request. held: bounds the bytes of all requests.

        That is another one than of bodies: a request that holds a body may wait for it.
        """
        self.regions = regions
        self._readers = readers
        self._most_bytes = most_bytes
        self._held = held or HeldBytes(1 << 62)
        self._threads: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def carried(
        self, request: InferRequest, is_owner: bool, hints: Hints
    ) -> AsyncIterator[Carried]:
        """Read the inputs that are in regions, for the duration of a call.

        is_owner: whether the caller is the farm's user on this machine. hints: for taking turns.
        Raises InvalidInput, and Refused if the caller is another or a region is unknown.
        """
        inputs, outputs, size = self._places(request, is_owner)
        share = await self._room(size)
        try:
            read = [
                tensor if isinstance(tensor, InferInput) else await self._read(*tensor, hints)
                for tensor in inputs
            ]
            yield Carried(self, request._replace(inputs=read), outputs, hints)
        finally:
            if share is not None:
                share.release()

    def carried_now(self, request: InferRequest, is_owner: bool, hints: Hints) -> Carried | None:
        """Read the inputs at once if they are short; None: do so with `carried`.

        Raises as `carried`.
        """
        inputs, outputs, size = self._places(request, is_owner)
        if size > QUICK_BYTES:
            return None
        read = [
            tensor if isinstance(tensor, InferInput) else _input_at(*tensor) for tensor in inputs
        ]
        return Carried(self, request._replace(inputs=read), outputs, hints)

    def close(self) -> None:
        """Forget all regions, and wait for copies that run: the farm stops."""
        self.regions.unregister()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _places(
        self, request: InferRequest, is_owner: bool
    ) -> tuple[list[InferInput | _Input], dict[str, Region], int]:
        """Return the inputs, the regions of outputs, and the bytes of inputs in regions."""
        check_owner(is_owner)
        inputs: list[InferInput | _Input] = []
        size = 0
        for tensor in request.inputs:
            place = place_of(tensor.parameters, f"input {shown(tensor.name)}")
            if place is None:
                inputs.append(tensor)
                continue
            region = self._found(place)
            inputs.append((tensor, place, region))
            size += place.byte_size
        outputs = {}
        for name, parameters in request.outputs:
            place = place_of(parameters, f"output {shown(name)}")
            if place is not None:
                outputs[name] = self._found(place)
        if size > self._most_bytes:
            raise InvalidInput(
                f"the inputs in shared memory have {size} bytes; {self._most_bytes} is the limit "
                "here (max_body_bytes)"
            )
        return inputs, outputs, size

    def _found(self, place: Place) -> Region:
        region = self.regions.find(place.region)
        region.check(place)
        return region

    async def _room(self, size: int) -> Share | None:
        """Wait for memory for the inputs of a request."""
        if size <= FREE_BYTES:
            return None
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():
                granted.set_result(None)

        share = self._held.reserve(size, grant)
        try:
            if not share.granted:
                await granted
        except asyncio.CancelledError:
            share.release()
            raise
        return share

    async def _read(
        self, tensor: InferInput, place: Place, region: Region, hints: Hints
    ) -> InferInput:
        name, datatype, shape, _, _ = tensor
        if datatype == BYTES and place.byte_size > HEAVY_BYTES:
            data = await self._elsewhere(place.byte_size, lambda: _bytes_at(place, region))
            about = (data, datatype, shape, f"input {shown(name)}")
            array: Array = await carried_out(self._readers, raw_array, *about, hints=hints)
            return InferInput(name, datatype, shape, array)
        return await self._elsewhere(place.byte_size, lambda: _input_at(tensor, place, region))

    async def raw_form(self, array: Array, hints: Hints, is_text: bool) -> Raw:
        """Return the raw form of an output."""
        if is_text and is_long(Result((array,))):
            raw: Raw = await carried_out(self._readers, raw_bytes, array, hints=hints)
            return raw
        return await self._elsewhere(array.nbytes, lambda: raw_view(array))

    async def write(self, region: Region, place: Place, data: Raw) -> None:
        """Write an output into its place. Raises InvalidInput."""
        await self._elsewhere(len(data), lambda: _write(region, place, data))

    async def _elsewhere(self, size: int, work: Callable[[], Outcome]) -> Outcome:
        """Return what `work` returns; it runs in a thread if it copies many bytes."""
        if size <= HEAVY_BYTES:
            return work()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="regions")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class Carried:
    """A request whose inputs have been read, and the regions of its outputs by their names."""

    __slots__ = ("_carrier", "_hints", "_regions", "request")

    def __init__(
        self, carrier: Carrier, request: InferRequest, regions: dict[str, Region], hints: Hints
    ) -> None:
        self.request = request
        self._carrier = carrier
        self._regions = regions
        self._hints = hints

    def put_now(self, wish: Wish, result: Result) -> tuple[Wish, Result] | None:
        """Do what `put` does at once if the outputs are short; None: nothing is done."""
        if is_long(result):
            return None
        placed = [
            (output, output.place, raw_view(result.outputs[output.position]))
            for output in wish.outputs
            if output.place is not None and result.outputs
        ]
        for output, place, data in placed:
            _check_size(output, place, len(data))
        for output, place, data in placed:
            _write(self._regions[output.name], place, data)
        return _left(wish, result)

    async def put(self, wish: Wish, result: Result) -> tuple[Wish, Result]:
        """Write the outputs that belong into regions; return what remains of the answer.

        All sizes are checked before anything is written. Raises InvalidInput.
        """
        if (left := self.put_now(wish, result)) is not None:
            return left
        placed = []
        for output in wish.outputs:
            if output.place is not None:
                array, is_text = result.outputs[output.position], output.datatype == BYTES
                data = await self._carrier.raw_form(array, self._hints, is_text)
                _check_size(output, output.place, len(data))
                placed.append((output, output.place, data))
        for output, place, data in placed:
            await self._carrier.write(self._regions[output.name], place, data)
        return _left(wish, result)


def _check_size(output: WishedOutput, place: Place, size: int) -> None:
    """Raise InvalidInput unless an output of `size` bytes fits its place."""
    if size > place.byte_size:
        raise InvalidInput(
            f"shared memory size specified with the request for output {shown(output.name)} "
            f"({place.byte_size} bytes) should be at least {size} bytes to hold the results"
        )


def _left(wish: Wish, result: Result) -> tuple[Wish, Result]:
    """Return what remains of an answer whose outputs with a place are in regions."""
    outputs, arrays = list(wish.outputs), list(result.outputs)
    for i, output in enumerate(outputs):
        if output.place is not None and arrays:
            shape = wish.lead + arrays[output.position].shape
            outputs[i] = output._replace(place=output.place._replace(shape=shape))
            arrays[output.position] = NO_DATA
    return wish._replace(outputs=outputs), replace(result, outputs=tuple(arrays))


def _input_at(tensor: InferInput, place: Place, region: Region) -> InferInput:
    name, datatype, shape, _, _ = tensor
    array = raw_array(_bytes_at(place, region), datatype, shape, f"input {shown(name)}")
    return InferInput(name, datatype, shape, array)


def _bytes_at(place: Place, region: Region) -> memoryview:
    """Return a copy of the bytes at a place: the client may write there at any time."""
    data = np.empty(place.byte_size, np.uint8).data
    try:
        count = region.file.read(region.offset + place.offset, data)
    except OSError as error:
        raise _failed("read", region, error) from None
    if count < len(data):
        raise region.cut()
    return data.toreadonly()


def _write(region: Region, place: Place, data: Raw) -> None:
    region.check(place)  # the object may have been cut during the call
    try:
        region.file.write(region.offset + place.offset, data)
    except OSError as error:
        raise _failed("written", region, error) from None


def _failed(done: str, region: Region, error: OSError) -> InvalidInput:
    return InvalidInput(
        f"shared memory region {shown(region.name)} could not be {done}: {error.strerror}"
    )
