"""Loading and unloading, and readiness afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from farm.call import ModelInfo
from farm.dispatcher.first_worker import FirstWorker
from farm.errors import InvalidInput, ModelNotFound, Unavailable, UnsupportedFeature
from farm.protocols.kserve.repository import Repository
from farm.versions import Numbered
from tests.support.coroutines import LIMIT_S, on_uvloop, until
from tests.support.expected import Expected


class Served:
    def __init__(self, *names: str) -> None:
        self.names = names
        self.without_workers: set[str] = set()
        self.first_worker = FirstWorker(self.models(), {}, lambda task, error: None)

    def is_ready(self, model: str) -> bool:
        return model not in self.without_workers

    def models(self) -> Mapping[str, ModelInfo]:
        return {name: ModelInfo(name, (), ()) for name in self.names}


def test_all_is_loaded_at_first() -> None:
    repository = Repository(Served("a", "b"))
    assert repository.names() == ["a", "b"]
    assert repository.model("a").name == "a"
    assert repository.model("a", "1").name == "a"
    assert repository.all_ready()
    assert repository.is_ready("a")
    assert repository.is_ready("a", "1")
    assert not repository.is_ready("a", "2")
    assert not repository.is_ready("c")


def test_an_unloaded_model_is_not_found_until_it_is_loaded() -> None:
    repository = Repository(Served("a", "b"))
    repository.unload("a")
    repository.unload("a")
    assert repository.names() == ["b"]
    assert not repository.all_ready()
    assert not repository.is_ready("a")
    with pytest.raises(ModelNotFound, match="model 'a' is unloaded"):
        repository.model("a")
    assert repository.index() == [
        {"name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "b", "version": "1", "state": "READY", "reason": ""},
    ]
    assert [row["name"] for row in repository.index(ready_only=True)] == ["b"]
    repository.load("a", {"unload_dependents": False})
    assert repository.model("a").name == "a"
    assert repository.all_ready()


def test_a_model_without_workers_is_not_ready() -> None:
    served = Served("a", "b")
    repository = Repository(served)
    served.without_workers = {"b"}
    assert repository.is_ready("a")
    assert not repository.is_ready("b")
    assert not repository.all_ready()
    assert repository.index()[1] == {
        "name": "b",
        "version": "1",
        "state": "UNAVAILABLE",
        "reason": "no worker has it, and none is expected",
    }
    assert [row["name"] for row in repository.index(ready_only=True)] == ["a"]
    assert repository.model("b").name == "b", "it may be asked, and its calls wait"


def test_models_and_versions_that_there_are_none_of() -> None:
    repository = Repository(Served("a"))
    with pytest.raises(ModelNotFound, match="model 'a' has no version '2'"):
        repository.model("a", "2")
    for ask in (repository.model, repository.unload, lambda name: repository.load(name, {})):
        with pytest.raises(ModelNotFound, match="no model 'q' is served here; the models are 'a'"):
            ask("q")
    # Triton's words, which its examples look for
    with pytest.raises(ModelNotFound, match=r"^failed to load 'q', failed to poll from model re"):
        repository.load("q", {})
    with pytest.raises(ModelNotFound, match=r"^failed to unload 'q': no model"):
        repository.unload("q")
    many = Repository(Served(*[f"m{i}" for i in range(100)]))
    with pytest.raises(ModelNotFound, match=r"'m19' and 80 more$"):
        many.model("x" * 10_000)


def test_a_farm_without_models_is_not_ready() -> None:
    repository = Repository(Served())
    assert not repository.all_ready()
    assert repository.index() == []
    with pytest.raises(
        Unavailable, match="no model is known yet: the farm waits for its first worker"
    ):
        repository.model("a")


def test_dependents_are_accepted_and_changes_from_outside_are_not() -> None:
    repository = Repository(Served("a", "b"))
    for value in (True, False):
        repository.unload("a", {"unload_dependents": value})
        assert repository.names() == ["b"]
    wrong: Any
    for wrong in ("true", 1, None, []):
        with pytest.raises(InvalidInput, match=r"parameter unload_dependents is .*; expected true"):
            repository.unload("b", {"unload_dependents": wrong})
    assert repository.names() == ["b"]
    for key, what in (("config", "another configuration"), ("file:1/model.onnx", "a file")):
        said = rf"^failed to load 'a'.*: parameter '{key}' holds {what}, .* not changed from out"
        with pytest.raises(UnsupportedFeature, match=said):
            repository.load("a", {key: "{}"})


# Versions


def versioned() -> tuple[Served, Repository]:
    served = Served("net", "net/2", "net/10", "other/3", "a/b")
    return served, Repository(served)


def test_a_version_is_called_by_number_and_none_is_the_greatest() -> None:
    _, repository = versioned()
    assert repository.names() == ["net", "other", "a/b"]
    assert repository.versions("net") == ["1", "2", "10"]
    for version, name in (("", "net/10"), ("1", "net"), ("2", "net/2"), ("10", "net/10")):
        assert repository.model("net", version).name == name
    assert repository.model("other").name == repository.model("other", "3").name == "other/3"
    with pytest.raises(ModelNotFound, match="'net' has no version '3'; it has the versions '1', "):
        repository.model("net", "3")
    assert repository.model("net", "0").name == "net/10", "0 is any version"
    assert repository.is_ready("net", "0")
    assert [one.version for one in repository.numbered("net", "0")] == ["1", "2", "10"]
    with pytest.raises(ModelNotFound, match="no version '00'"):
        repository.model("net", "00")
    with pytest.raises(ModelNotFound, match="'other' has no version '1'; it has version '3'"):
        repository.model("other", "1")


def test_every_model_is_called_by_its_whole_name_too() -> None:
    _, repository = versioned()
    for name in ("net/2", "net/10", "other/3", "a/b"):
        assert repository.model(name).name == name
        assert repository.model(name, "1").name == name
        assert repository.versions(name) == ["1"]
        assert repository.numbered(name) == [Numbered(name, "1", name)]


def test_a_model_is_unloaded_with_all_its_versions_or_one() -> None:
    _, repository = versioned()
    repository.unload("net/10")
    assert repository.model("net").name == "net/2"
    assert repository.versions("net") == ["1", "2"]
    assert repository.is_ready("net")
    assert not repository.is_ready("net", "10")
    with pytest.raises(ModelNotFound, match="model 'net' is unloaded"):
        repository.model("net", "10")
    repository.unload("net")
    assert repository.names() == ["other", "a/b"]
    assert not repository.is_ready("net")
    with pytest.raises(ModelNotFound, match="model 'net' is unloaded"):
        repository.model("net")
    repository.load("net", {})
    assert repository.versions("net") == ["1", "2", "10"]
    assert repository.all_ready()


def test_a_version_that_joins_later_is_found() -> None:
    served, repository = versioned()
    assert repository.knows("net")
    assert not repository.knows("late")
    before = repository.model("net", "0").name
    assert repository.model("net", "0").name == before != "net/11"
    served.names += ("net/11", "late/2")
    assert repository.model("net").name == "net/11"
    assert repository.model("net", "0").name == "net/11"
    assert repository.model("late").name == "late/2"


class Growing:
    """A farm that still expects models."""

    def __init__(self) -> None:
        self.infos = {"net": ModelInfo("net", (), ())}
        self.expected = Expected(incomplete=True)
        self.first_worker = FirstWorker(
            self.infos, {}, lambda task, error: None, expected=self.expected
        )

    def is_ready(self, model: str) -> bool:
        return True

    def models(self) -> Mapping[str, ModelInfo]:
        return self.infos


@on_uvloop
async def test_a_request_waits_for_any_version_of_its_model() -> None:
    served = Growing()
    repository = Repository(served)
    await repository.known("net")
    waiting = asyncio.ensure_future(repository.known("late"))
    await until(lambda: served.first_worker.requests)
    served.infos["late/2"] = ModelInfo("late/2", (), ())
    served.first_worker.models_known()
    async with asyncio.timeout(LIMIT_S):
        await waiting
    assert repository.model("late").name == "late/2"
    assert not served.first_worker.requests
    served.expected.incomplete = False
    await repository.known("nobody")  # it is not expected
    assert not served.first_worker.requests
