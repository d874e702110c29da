"""farm/protocols/kserve/grpc/descriptors.py corresponds to the .proto files."""

from __future__ import annotations

from tests.support.kserve_proto import TARGET, generated


def test_the_checked_in_messages_are_current() -> None:
    assert TARGET.read_text() == generated(), "run: make proto"
