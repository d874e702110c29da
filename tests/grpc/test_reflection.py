"""Server reflection: its messages, its answers and its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_reflection.v1alpha import reflection_pb2 as published
from hypothesis import given
from hypothesis import strategies as st

from farm.bodies.body import HeldBody
from farm.errors import InvalidRequest, Unavailable
from farm.grpc.call import Caller
from farm.grpc.reflection import DESCRIPTORS, LONGEST_REQUEST, PACKAGES, Reflection, described
from farm.grpc.server import GrpcServer, Services
from tests.support.coroutines import LIMIT_S, until
from tests.support.grpc_server import served
from tests.support.proto import REFLECTION, generated


def file_set(*files: FileDescriptorProto) -> bytes:
    return bytes(FileDescriptorSet(file=files).SerializeToString())


def two_files() -> bytes:
    """Return a service whose messages are in a file of their own, which has an enum, too."""
    types = FileDescriptorProto(name="types.proto", package="zoo", syntax="proto3")
    animal = types.message_type.add(name="Animal")
    animal.field.add(name="legs", number=1, type=5, label=1)
    animal.nested_type.add(name="Tail")
    types.enum_type.add(name="Kind").value.add(name="CAT", number=0)
    zoo = FileDescriptorProto(name="zoo.proto", package="zoo", syntax="proto3")
    zoo.dependency.append("types.proto")
    zoo.service.add(name="Zoo").method.add(
        name="Feed", input_type=".zoo.Animal", output_type=".zoo.Animal"
    )
    return file_set(types, zoo)


def extended() -> bytes:
    """Return a file of the older syntax, whose message another package extends."""
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    file.message_type.add(name="Base").extension_range.add(start=100, end=200)
    for name, number in (("second", 150), ("first", 101)):
        file.extension.add(name=name, number=number, type=5, label=1, extendee=".old.Base")
    return file_set(file)


def ask(reflection: Reflection, **wanted: Any) -> Any:
    request = published.ServerReflectionRequest(**wanted)
    found = reflection.answer(request.SerializeToString())
    response = published.ServerReflectionResponse.FromString(found)
    assert response.original_request == request
    return response


def files_of(response: Any) -> list[str]:
    data = response.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(each).name for each in data]


def test_the_messages_are_those_of_the_grpc_project() -> None:
    expected = FileDescriptorProto()
    published.DESCRIPTOR.CopyToProto(expected)
    ours = described("grpc.reflection.v1alpha")
    assert {m.name for m in ours.message_type} == {m.name for m in expected.message_type}
    for message in expected.message_type:
        (mine,) = (m for m in ours.message_type if m.name == message.name)
        for field in message.field:
            field.ClearField("json_name")
        assert list(mine.field) == list(message.field)
        assert list(mine.oneof_decl) == list(message.oneof_decl)
    assert list(ours.service) == list(expected.service)


def test_the_descriptors_are_those_of_the_proto_file() -> None:
    assert generated(REFLECTION) == DESCRIPTORS.read_bytes(), "run: make proto"


def test_services_are_listed_with_reflection_itself() -> None:
    response = ask(Reflection([two_files()]), list_services="*", host="here")
    assert response.valid_host == "here"
    assert [each.name for each in response.list_services_response.service] == [
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "zoo.Zoo",
    ]


ZOO, TYPES = ["zoo.proto", "types.proto"], ["types.proto"]
OWN = "grpc/reflection/v1/reflection.proto"


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ({"file_containing_symbol": "zoo.Zoo"}, ZOO),
        ({"file_containing_symbol": "zoo.Zoo.Feed"}, ZOO),
        ({"file_containing_symbol": "zoo.Animal"}, TYPES),
        ({"file_containing_symbol": "zoo.Animal.legs"}, TYPES),
        ({"file_containing_symbol": "zoo.Animal.Tail"}, TYPES),
        ({"file_containing_symbol": "zoo.Kind"}, TYPES),
        ({"file_by_filename": "types.proto"}, TYPES),
        ({"file_by_filename": OWN}, [OWN]),
    ],
)
def test_a_symbol_or_name_brings_its_file_and_those_that_it_imports(
    wanted: dict[str, Any], files: list[str]
) -> None:
    assert files_of(ask(Reflection([two_files(), b"", extended()]), **wanted)) == files


def test_extensions() -> None:
    reflection = Reflection([extended()])
    numbers = ask(reflection, all_extension_numbers_of_type="old.Base")
    assert list(numbers.all_extension_numbers_response.extension_number) == [101, 150]
    assert numbers.all_extension_numbers_response.base_type_name == "old.Base"
    wanted = {"containing_type": "old.Base", "extension_number": 150}
    assert files_of(ask(reflection, file_containing_extension=wanted)) == ["old.proto"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"file_by_filename": "nothing.proto"},
        {"file_by_filename": ""},
        {"file_by_filename": "../../etc/passwd"},
        {"file_containing_symbol": "zoo.Nothing"},
        {"file_containing_symbol": ""},
        {"file_containing_symbol": "."},
        {"file_containing_symbol": "zoo"},
        {"all_extension_numbers_of_type": "zoo.Nothing"},
        {"file_containing_extension": {}},
        {"file_containing_extension": {"containing_type": "zoo.Animal", "extension_number": -1}},
    ],
)
def test_unknown_names_are_errors_in_the_answer(wanted: dict[str, Any]) -> None:
    response = ask(Reflection([two_files()]), **wanted)
    assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert response.error_response.error_message


def test_a_request_for_nothing() -> None:
    response = ask(Reflection([]), host="here")
    assert response.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


@given(
    name=st.text("azA.Z_/ \0\nü\U0001f984", max_size=60),
    kind=st.sampled_from(sorted(published.ServerReflectionRequest.DESCRIPTOR.fields_by_name)),
)
def test_any_name_is_answered(name: str, kind: str) -> None:
    wanted: Any = {"containing_type": name} if "containing_e" in kind else name
    assert ask(Reflection([two_files()]), **{kind: wanted}).ByteSize() < 10_000


def test_what_is_no_request() -> None:
    reflection = Reflection([])
    with pytest.raises(InvalidRequest, match="not a ServerReflectionRequest"):
        reflection.answer(b"\xff\xff")
    request = published.ServerReflectionRequest(file_by_filename="a" * LONGEST_REQUEST)
    with pytest.raises(InvalidRequest, match=f"expected at most {LONGEST_REQUEST}"):
        reflection.answer(request.SerializeToString())
    with pytest.raises(InvalidRequest, match="has 0 bytes; expected at most"):
        reflection.answer(HeldBody(1 << 20))


def test_two_files_of_one_name_have_to_be_the_same() -> None:
    Reflection([two_files(), two_files()])
    other = FileDescriptorProto(name="zoo.proto", package="zoo2", syntax="proto3")
    with pytest.raises(Unavailable, match=r"different files 'zoo\.proto'"):
        Reflection([two_files(), file_set(other)])


# Streams


class NoStreams(Reflection):
    """Reflection whose open streams are counted."""

    open = 0

    async def _answer_all(self, requests: Any, write: Callable[..., Any]) -> None:
        self.open += 1
        try:
            await super()._answer_all(requests, write)
        finally:
            self.open -= 1


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[NoStreams, GrpcServer, Any]]:
    service = Services([reflection := NoStreams([two_files()])])
    async with (
        served(service) as (_, server, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield reflection, server, channel


def stream(channel: Any, package: str) -> Any:
    method = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        request_serializer=published.ServerReflectionRequest.SerializeToString,
        response_deserializer=published.ServerReflectionResponse.FromString,
    )
    return method(timeout=LIMIT_S)


@pytest.mark.parametrize("package", PACKAGES)
async def test_a_stream_answers_in_order_and_continues_after_an_error(package: str) -> None:
    async with streaming() as (_, _, channel):
        call = stream(channel, package)
        for symbol, found in (("zoo.No", False), ("zoo.Zoo", True), ("", False)) * 100:
            await call.write(published.ServerReflectionRequest(file_containing_symbol=symbol))
            response = await call.read()
            assert response.original_request.file_containing_symbol == symbol
            assert response.HasField("file_descriptor_response") == found
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_wrong_message_ends_its_stream_only() -> None:
    async with streaming() as (_, _, channel):
        long, right = stream(channel, PACKAGES[0]), stream(channel, PACKAGES[0])
        await long.write(published.ServerReflectionRequest(file_by_filename="a" * 300_000))
        assert await long.code() is grpc.StatusCode.INVALID_ARGUMENT
        await right.write(published.ServerReflectionRequest(list_services=""))
        assert len((await right.read()).list_services_response.service) == 3
        await right.done_writing()


async def test_streams_end_with_the_server_and_with_their_client() -> None:
    async with streaming() as (reflection, server, channel):
        calls = [stream(channel, PACKAGES[0]) for _ in range(20)]
        for call in calls:
            await call.write(published.ServerReflectionRequest(list_services=""))
            await call.read()
        assert reflection.open == 20
        calls[0].cancel()
        await until(lambda: reflection.open == 19)
        await server.stop(LIMIT_S)
        assert reflection.open == 0
        assert await calls[1].code() is grpc.StatusCode.UNAVAILABLE


async def test_of_a_client_that_reads_no_answers_no_more_requests_are_taken() -> None:
    taken, writing = 0, asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield published.ServerReflectionRequest(list_services="").SerializeToString()

    async def write(_: bytes | memoryview) -> None:
        writing.set()
        await asyncio.Event().wait()

    serve = Reflection([]).bidirectional[f"/{PACKAGES[0]}.ServerReflection/ServerReflectionInfo"]
    serving = asyncio.ensure_future(serve(requests(), write, Caller("", "", {}, None)))
    await writing.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert taken == 1
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
