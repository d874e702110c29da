"""Messages of the .proto files in farm, as the serialized descriptors beside them.

`make proto` writes these; tests compare.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from grpc_tools import protoc

FARM = Path(__file__).parents[2] / "farm"
KSERVE = FARM / "protocols" / "kserve" / "grpc" / "messages.binpb"
REFLECTION = FARM / "grpc" / "reflection.binpb"
SOURCES = {KSERVE: ("kserve.proto", "grpc_health.proto"), REFLECTION: ("reflection.proto",)}
"""The .proto files that each file of descriptors has the messages of."""


def generated(target: Path) -> bytes:
    """Return the descriptors for `target`, as a serialized FileDescriptorSet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        arguments = [f"--proto_path={target.parent}", f"--descriptor_set_out={path}"]
        assert protoc.main(["protoc", *arguments, *SOURCES[target]]) == 0, "stderr says why"
        described = FileDescriptorSet.FromString(path.read_bytes())
    for file in described.file:
        for message in file.message_type:
            _drop_json_names(message)
    return bytes(described.SerializeToString(deterministic=True))


def _drop_json_names(message: DescriptorProto) -> None:
    """Leave out what protobuf fills in by itself."""
    for field in message.field:
        field.ClearField("json_name")
    for inner in message.nested_type:
        _drop_json_names(inner)


if __name__ == "__main__":
    for target in SOURCES:
        target.write_bytes(generated(target))
