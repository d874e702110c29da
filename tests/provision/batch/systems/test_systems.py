"""The list of batch systems."""

from __future__ import annotations

from farm.provision.batch.systems import SYSTEMS


def test_each_system_has_a_name_for_files_and_one_for_people() -> None:
    assert SYSTEMS["slurm"].title == "SLURM"
    assert all(name == name.lower() and name.isprintable() for name in SYSTEMS)
    assert len({system.title for system in SYSTEMS.values()}) == len(SYSTEMS)
