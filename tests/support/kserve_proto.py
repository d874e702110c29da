"""The text of farm/protocols/kserve/grpc/descriptors.py, made from the .proto files beside it.

`make proto` writes it; a test compares.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).parents[2] / "farm" / "protocols" / "kserve" / "grpc"
SOURCES = ("kserve.proto", "grpc_health.proto")
TARGET = FOLDER / "descriptors.py"

HEAD = '''"""The messages of kserve.proto and grpc_health.proto: a serialized FileDescriptorSet.

Written by `make proto`; do not edit.
"""

DESCRIPTORS = (
'''

WIDTH = 100 - len('    b""')


def described() -> FileDescriptorSet:
    """Return the descriptors of the .proto files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        arguments = ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={path}", *SOURCES]
        assert protoc.main(arguments) == 0, "protoc says what is wrong on stderr"
        found = FileDescriptorSet.FromString(path.read_bytes())
    for file in found.file:
        for message in file.message_type:
            _drop_json_names(message)
    return found


def _drop_json_names(message: DescriptorProto) -> None:
    """Leave out what protobuf fills in by itself."""
    for field in message.field:
        field.ClearField("json_name")
    for inner in message.nested_type:
        _drop_json_names(inner)


def generated() -> str:
    """Return the module's text."""
    data = described().SerializeToString(deterministic=True)
    return HEAD + "".join(_lines(data)) + ")\n"


def _lines(data: bytes) -> Iterator[str]:
    line = ""
    for i in range(len(data)):
        text = repr(data[i : i + 1])[2:-1]
        text = text.replace("\\'", "'").replace('"', r"\x22")  # the quotes that the format requires
        if len(line + text) > WIDTH:
            yield f'    b"{line}"\n'
            line = ""
        line += text
    yield f'    b"{line}"\n'


if __name__ == "__main__":
    TARGET.write_text(generated())
