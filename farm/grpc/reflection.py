"""Server reflection: a gRPC service that describes the server's services to generic clients.

grpcurl, grpcui and others call methods by name with it, without .proto files. It reveals names and
types only. Both versions of the service have the same messages. Needs protobuf.
Source: "gRPC Server Reflection Protocol", grpc/reflection/v1/reflection.proto of the gRPC project.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from farm.bodies.body import Body
from farm.errors import InvalidRequest, Unavailable
from farm.grpc.call import Caller, Requests, Service, Write
from farm.grpc.messages import STATUSES
from farm.wording import needs

PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""Packages of the service, the current one first; many clients know only the older."""

SERVICE, METHOD = "ServerReflection", "ServerReflectionInfo"

LONGEST_REQUEST = 4096
"""Bytes of a request, which is a name and is sent back with its answer."""

DESCRIPTORS = Path(__file__).with_name("reflection.binpb")
"""The messages of reflection.proto, which `make proto` writes."""


def described(package: str) -> Any:
    """Return the FileDescriptorProto of the service in a package."""
    from google.protobuf import text_format
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    (file,) = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    text = text_format.MessageToString(file).replace(PACKAGES[0], package)
    file = text_format.Parse(text, FileDescriptorProto())
    file.name = f"{package.replace('.', '/')}/reflection.proto"
    return file


class Reflection(Service):
    """The reflection of services, for both packages."""

    def __init__(self, descriptors: Iterable[bytes]) -> None:
        """descriptors: a serialized FileDescriptorSet for each part of the server.

        Raises Unavailable without protobuf, or if two parts have different files of one name.
        """
        with needs("kserve", "gRPC needs protobuf", Unavailable):
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        files = [described(package) for package in PACKAGES]
        for part in descriptors:
            files += descriptor_pb2.FileDescriptorSet.FromString(part).file
        self._pool = descriptor_pool.DescriptorPool()
        self._files: dict[str, tuple[bytes, tuple[str, ...]]] = {}
        self._methods: dict[str, str] = {}  # their files; not every pool finds methods
        services: set[str] = set()
        for file in files:
            data = file.SerializeToString()
            if self._files.setdefault(file.name, (data, tuple(file.dependency)))[0] != data:
                raise Unavailable(f"two gRPC services have different files {file.name!r}")
            self._pool.AddSerializedFile(data)
            for service in file.service:
                name = f"{file.package}.{service.name}"
                services.add(name)
                self._methods |= {f"{name}.{each.name}": file.name for each in service.method}
        self._services = sorted(services)
        classes: Mapping[str, Any] = message_factory.GetMessageClassesForFiles(
            [file.name for file in files[: len(PACKAGES)]], self._pool
        )
        self._request = classes[f"{PACKAGES[0]}.ServerReflectionRequest"]
        self._response = classes[f"{PACKAGES[0]}.ServerReflectionResponse"]
        self._ending = asyncio.Event()
        self.bidirectional = {f"/{p}.{SERVICE}/{METHOD}": self._serve for p in PACKAGES}

    def end_streams(self) -> None:
        """End the open streams because the server stops."""
        self._ending.set()

    async def _serve(self, requests: Requests, write: Write, caller: Caller) -> None:
        """Answer each request in turn, until the client or the server ends the stream."""
        answering = asyncio.ensure_future(self._answer_all(requests, write))
        ended = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({answering, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_answered = answering.done()
            for task in (answering, ended):
                task.cancel()
        if not was_answered:
            raise Unavailable("the farm is shutting down")
        answering.result()

    async def _answer_all(self, requests: Requests, write: Write) -> None:
        async for body in requests:
            await write(self.answer(body))

    def answer(self, body: Body) -> bytes:
        """Return the answer to one request, an error for an unknown name.

        Raises InvalidRequest if it is too long or not a request at all.
        """
        from google.protobuf.message import DecodeError

        if not isinstance(body, bytes) or len(body) > LONGEST_REQUEST:
            size = len(body) if isinstance(body, bytes) else body.size
            raise InvalidRequest(
                f"the request has {size} bytes; expected at most {LONGEST_REQUEST}"
            )
        try:
            request = self._request.FromString(body)
        except DecodeError:
            raise InvalidRequest("these bytes are not a ServerReflectionRequest") from None
        response = self._response(valid_host=request.host, original_request=request)
        wanted = request.WhichOneof("message_request")
        if wanted is None:
            self._refuse(response, "INVALID_ARGUMENT", "the request names nothing to describe")
            return bytes(response.SerializeToString())
        try:
            getattr(self, f"_{wanted}")(response, getattr(request, wanted))
        except KeyError:
            self._refuse(response, "NOT_FOUND", f"{wanted}: no such name is served here")
        return bytes(response.SerializeToString())

    def _refuse(self, response: Any, status: str, text: str) -> None:
        response.error_response.error_code = STATUSES[status]
        response.error_response.error_message = text

    # One for each kind of request; they raise KeyError for an unknown name.

    def _list_services(self, response: Any, _: str) -> None:
        for name in self._services:
            response.list_services_response.service.add(name=name)

    def _file_by_filename(self, response: Any, name: str) -> None:
        self._add_file(response, name, set())

    def _file_containing_symbol(self, response: Any, symbol: str) -> None:
        name = self._methods.get(symbol) or self._pool.FindFileContainingSymbol(symbol).name
        self._add_file(response, name, set())

    def _file_containing_extension(self, response: Any, wanted: Any) -> None:
        kind = self._pool.FindMessageTypeByName(wanted.containing_type)
        found = self._pool.FindExtensionByNumber(kind, wanted.extension_number)
        self._add_file(response, found.file.name, set())

    def _all_extension_numbers_of_type(self, response: Any, name: str) -> None:
        kind = self._pool.FindMessageTypeByName(name)
        numbers = sorted(each.number for each in self._pool.FindAllExtensions(kind))
        response.all_extension_numbers_response.base_type_name = name
        response.all_extension_numbers_response.extension_number.extend(numbers)

    def _add_file(self, response: Any, name: str, added: set[str]) -> None:
        """Add a file and, behind it, those that it imports."""
        data, dependencies = self._files[name]
        added.add(name)
        response.file_descriptor_response.file_descriptor_proto.append(data)
        for dependency in dependencies:
            if dependency not in added:
                self._add_file(response, dependency, added)
