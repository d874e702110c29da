"""Loading and unloading, and readiness afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farm.call import ModelInfo
from farm.dispatcher.first_worker import FirstWorker
from farm.errors import ModelNotFound, Unavailable, UnsupportedFeature
from farm.protocols.kserve.repository import Repository


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
    assert list(repository.models()) == ["a", "b"]
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
    assert list(repository.models()) == ["b"]
    assert not repository.all_ready()
    assert not repository.is_ready("a")
    with pytest.raises(ModelNotFound, match="model 'a' is unloaded"):
        repository.model("a")
    assert repository.index() == [
        {"name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "b", "version": "1", "state": "READY"},
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


def test_a_farm_of_many_models_names_some() -> None:
    repository = Repository(Served(*[f"m{i}" for i in range(100)]))
    with pytest.raises(ModelNotFound, match=r"'m19' and 80 more$"):
        repository.model("x" * 10_000)


def test_a_farm_without_models_is_not_ready() -> None:
    repository = Repository(Served())
    assert not repository.all_ready()
    assert repository.index() == []
    with pytest.raises(
        Unavailable, match="no model is known yet: the farm waits for its first worker"
    ):
        repository.model("a")


def test_models_are_not_changed_from_outside() -> None:
    repository = Repository(Served("a"))
    for key in ("config", "file:1/model.onnx"):
        with pytest.raises(UnsupportedFeature, match="models are not changed from outside"):
            repository.load("a", {key: "{}"})
