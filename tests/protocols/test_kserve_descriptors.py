"""farm/protocols/kserve_descriptors.py is what the .proto files say."""

from __future__ import annotations

from tests.protocols.kserve_proto import TARGET, generated


def test_the_checked_in_messages_are_current() -> None:
    assert TARGET.read_text() == generated(), "run: make proto"
