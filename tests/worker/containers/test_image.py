"""What `docker://IMAGE OPTIONS` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.worker.containers.image import Image, file_of, located, parsed


@pytest.mark.parametrize(
    ("url", "image"),
    [
        ("docker://a", Image("docker", "a")),
        ("docker://r.io:5000/a/b@sha256:12", Image("docker", "r.io:5000/a/b@sha256:12")),
        (
            "podman://a -v '/my data:/d' --network mine",
            Image("podman", "a", ("-v", "/my data:/d", "--network", "mine")),
        ),
        ("apptainer://a --net", Image("apptainer", "a", ("--net",))),
    ],
)
def test_parts(url: str, image: Image) -> None:
    assert parsed(url) == image


@pytest.mark.parametrize(
    "options",
    [
        *("-p 1:1", "-p1:1", "--publish=1:1", "-P", "-d", "--name x", "--rm"),
        *("--network host", "--net=none", "--network=container:x"),
    ],
)
def test_options_that_are_farms_own(options: str) -> None:
    with pytest.raises(ValueError, match=r"docker://a has the (option|network) '"):
        parsed(f"docker://a {options}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/images/a.sif", "/images/a.sif"),
        ("a.sif", "a.sif"),
        ("./sandbox", "sandbox"),
        ("user/image:1", None),
        ("library://user/image", None),
        ("docker://user/image", None),
    ],
)
def test_files_of_apptainer(name: str, path: str | None) -> None:
    assert file_of(Image("apptainer", name)) == (None if path is None else Path(path))
    assert file_of(Image("docker", name)) is None


def test_places_for_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = f"apptainer://{tmp_path}/a.sif --bind '/b c'"
    assert located("apptainer://a.sif --bind '/b c'") == absolute
    for url in ("apptainer://user/image", "docker://./a.sif", "http://a"):
        assert located(url) == url
