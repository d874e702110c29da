"""What model specifications name, by their text alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.descriptors import resolve
from farm.worker.kinds import FILES
from farm.worker.specs import (
    Spec,
    all_forms,
    located,
    needs_folder,
    parsed,
    runs_one_at_a_time,
    source_of,
)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("m.py:Beam", Spec("", "m.py:Beam", (), None, Path("m.py"), "Beam")),
        ("a=m.R", Spec("a", "m.R", (), None, Path("m.R"), "")),
        ("a=lines:perl m.pl", Spec("a", "lines:perl m.pl", (), "perl m.pl", Path(), "")),
    ],
)
def test_parts(spec: str, parts: Spec) -> None:
    assert parsed(spec) == parts


@pytest.mark.parametrize(
    ("spec", "urls"),
    [
        ("docker://r.io:5000/a/b@sha256:1", ("docker://r.io:5000/a/b@sha256:1",)),
        ("m=f@docker://a -e U=b@http://x", ("docker://a -e U=b@http://x",)),
        ("apptainer://docker://a", ("apptainer://docker://a",)),
        ("f@podman://a,docker://b", ("podman://a", "docker://b")),
    ],
)
def test_containers_are_servers(spec: str, urls: tuple[str, ...]) -> None:
    assert parsed(spec).urls == urls
    assert source_of(spec) == ""
    assert not needs_folder(spec)
    assert located(spec) == spec


@pytest.mark.parametrize("suffix", [".py", *FILES, ".pkl"])
def test_files_are_located(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(f"a=sub/m{suffix}") == f"a={tmp_path}/sub/m{suffix}"
    assert source_of(f"m{suffix}") == str(tmp_path / f"m{suffix}")


def test_modules_and_commands_are_looked_up_here() -> None:
    assert needs_folder("package.module:Beam")
    assert needs_folder("lines:./model")


def test_every_kind_of_file_has_a_class_and_is_listed() -> None:
    for suffix, kind in FILES.items():
        assert callable(resolve(kind.model))
        assert suffix == ".r" or f"FILE{suffix}" in all_forms()


def test_models_that_evaluate_one_point_at_a_time() -> None:
    one = ["docker://a", "m=f@apptainer://a", "lines:./model", "m.R", "a=m.fmu"]
    many = ["http://a", "m.py:Beam", "package.module", "net.onnx", "mip://a:1"]
    assert [spec for spec in [*one, *many] if runs_one_at_a_time(spec)] == one
