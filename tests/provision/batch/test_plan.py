"""The file of `farm serve --cluster`: its keys, and the messages about mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.provision.batch.plan import ClusterPlan, read_plan
from farm.provision.batch.systems import BUILT_IN, SLURM
from farm.settings import SettingsError

TWO = """
host = "login1"
account = "a1"
time = "1:00:00"

[[workers]]
name = "small"
models = ["beam.py"]
partition = "cpu"
workers = 4

[[workers]]
name = "big"
models = ["plate.py:Plate"]
account = "a2"
gpus = 2
max_jobs = 3
sbatch = ["--exclusive"]
"""


def plan(folder: Path, text: str, models: tuple[str, ...] = ("m.py",)) -> ClusterPlan:
    file = folder / "farm.toml"
    file.write_text(text)
    return read_plan(file, models)


def test_each_table_is_a_kind_and_keys_above_them_are_for_all(tmp_path: Path) -> None:
    small, big = plan(tmp_path, TWO).kinds
    assert (small.name, small.account, small.time_limit_s) == ("small", "a1", 3600)
    assert (big.name, big.account, big.time_limit_s) == ("big", "a2", 3600)
    assert (small.workers_per_job, big.workers_per_job) == (4, 2)
    assert (small.queue, big.options) == ("cpu", ("--exclusive",))
    assert plan(tmp_path, TWO).host == "login1"


def test_tables_without_models_or_name_get_those_of_the_command_line(tmp_path: Path) -> None:
    (kind,) = plan(tmp_path, "[[workers]]\n", ("beam.py", "plate.py")).kinds
    assert kind.models == ("beam.py", "plate.py")
    assert kind.name == "w1"


def test_a_template_is_found_beside_the_file(tmp_path: Path) -> None:
    (kind,) = plan(tmp_path, '[[workers]]\ntemplate = "mine.in"\n').kinds
    assert kind.template == str(tmp_path / "mine.in")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no [[workers]] table"),
        ("workers = 3", "has no [[workers]] table"),
        ("not toml", "cannot be read"),
        ('[[workers]]\nparition = "cpu"', "'parition', which is none of: account, backlog_s, cal"),
        ('port = 1\n[[workers]]\npartition = "cpu"', "sets 'port', which is none of"),
        ('name = "x"\n[[workers]]\n', "sets 'name', which is none of"),
        ("[[workers]]\ncpus = 0", "number 1: cpus is 0; expected 1 or more"),
        ('[[workers]]\ncpus = "4"', "sets cpus to '4'; expected a whole number"),
        ("[[workers]]\ncpus = true", "expected a whole number"),
        ('[[workers]]\nmodels = "m.py"', "expected a list of texts"),
        ("[[workers]]\nmodels = []", "expected at least one model"),
        ("[[workers]]\nmin_jobs = 11", "min_jobs is 11; expected 0 to max_jobs=10"),
        ('[[workers]]\ntime = "soon"', "time is 'soon'; expected minutes"),
        ("[[workers]]\ntime = 1\nwarn_s = 60", "expected a number of seconds above 0 and below"),
        ('[[workers]]\nname = "a b"', "name is 'a b'; expected letters"),
        ('[[workers]]\npartition = "cpu\\nrm -rf"', "expected it on one line"),
        ('[[workers]]\nname = "a"\n[[workers]]\nname = "a"', "two [[workers]] tables named a"),
        ("host = 3\n[[workers]]", "sets host to 3"),
        ('system = "slurmm"\n[[workers]]', "sets system to 'slurmm'; expected one of: slurm"),
        ("system = 3\n[[workers]]", "sets system to 3; expected one of: slurm"),
        ('[[workers]]\npartition = "a"\nqueue = "b"', "sets both 'partition' and 'queue'"),
        (
            'system = "pbs"\n[[workers]]\npartition = "a"',
            "sets 'partition', a word of SLURM; PBS: 'queue'",
        ),
        ('[[workers]]\nmpi_launch = "mpiexec"', "'mpi_launch', for which SLURM has no counterpart"),
    ],
)
def test_mistakes_are_said(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        plan(tmp_path, text)
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no file .*nothing\.toml"):
        read_plan(tmp_path / "nothing.toml")


def test_the_system_is_slurm_unless_the_file_names_another(tmp_path: Path) -> None:
    assert plan(tmp_path, "[[workers]]\n").system is SLURM
    for system in BUILT_IN:
        assert plan(tmp_path, f'system = "{system.name}"\n[[workers]]\n').system is system
