"""farm's own interface: models, status, errors in one form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import farm
from farm.call import ModelInfo
from farm.dispatcher.questions import needed
from farm.errors import FarmError
from farm.model import Config, Inputs
from farm.protocols.points.endpoint import reference_page
from tests.protocols.models import Sized
from tests.support.front_door import Door, front_door


@farm.model(inputs={"x": 2}, outputs={"y": (2, 2)})
def forward(x: Any) -> Any:
    """Doubles."""
    return [[x[0], x[1]], [x[1], x[0]]]


class Priced(Sized):
    def cost(self, inputs: Inputs, config: Config) -> float:
        return 1.0


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door({"forward": forward, "lab/sized": Priced()}) as opened:
        yield opened


def test_models_are_listed_with_the_operations_that_points_may_request(door: Door) -> None:
    listed = door.ask("GET", "/farm/models").json()
    infos = [ModelInfo.from_json(data) for data in listed]
    assert [info.name for info in infos] == ["forward", "lab/sized"]
    assert infos[0].outputs[0].shape == (2, 2)
    assert infos[0].description == "Doubles."
    described = door.ask("GET", "/farm/models/lab/sized").json()
    assert listed[1]["operations"] == described["operations"] == ["evaluate"]


def test_one_model_is_described_for_a_config(door: Door) -> None:
    def size(query: str) -> Any:
        data = door.ask("GET", f"/farm/models/lab/sized{query}").json()
        return ModelInfo.from_json(data).inputs[0].size

    assert size("") == 1
    assert size('?config={"n":5}') == 5
    assert size("?config=null") == 1


def test_the_status_tells_workers_and_models(door: Door) -> None:
    door.ask("POST", "/Evaluate", {"name": "forward", "input": [[1, 2]]})
    status = door.ask("GET", "/farm/status").json()
    assert status["models"] == ["forward", "lab/sized"]
    (worker,) = status["workers"]
    assert "thread" in worker["name"]
    assert status["done"] >= 1
    assert "forward" in {row["model"] for row in status["queues"]}


def test_the_interface_is_documented(door: Door) -> None:
    paths = door.ask("GET", "/openapi.json").json()["paths"]
    evaluate = paths["/farm/models/{name}/evaluate"]["post"]
    schema = evaluate["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["inputs"]
    assert {"inputs", "config", "operation", "non_finite"} <= set(schema["properties"])
    assert set(paths) == {
        "/farm/status",
        "/farm/models",
        "/farm/models/{name}",
        "/farm/models/{name}/evaluate",
        "/farm/{question}",
    }


def test_questions_are_asked_by_get_and_actions_by_post(door: Door) -> None:
    taken: list[dict[str, str]] = []
    door.dispatcher.questions.offer(
        "weather", lambda asked: {"in": needed(asked, "place"), "sun": True}
    )
    door.dispatcher.questions.offer("rain", lambda asked: taken.append(dict(asked)), changes=True)
    assert door.ask("GET", "/farm/weather?place=Oslo").json() == {"in": "Oslo", "sun": True}
    refused = door.ask("GET", "/farm/weather")
    assert (refused.status, refused.json()["error"]["type"]) == (400, "InvalidInput")
    assert door.ask("GET", "/farm/rain").status == 405
    assert door.ask("GET", "/farm/rain").headers["allow"] == "POST"
    assert door.ask("POST", "/farm/weather").headers["allow"] == "GET"
    assert door.ask("POST", "/farm/rain?mm=3").status == 200
    assert taken == [{"mm": "3"}]
    assert door.ask("GET", "/farm/snow").status == 404
    for path in ("/farm/status", "/farm/models"):
        refused = door.ask("POST", path)
        assert (refused.status, refused.headers["allow"]) == (405, "GET")
    with farm.connect(door.url) as client:
        assert client.ask("weather", place="Oslo") == {"in": "Oslo", "sun": True}
        assert client.ask("rain", mm="4") is None
        with pytest.raises(FarmError, match="is missing"):
            client.ask("weather")


def test_an_action_is_for_the_owner_and_the_status_says_who_that_is(door: Door) -> None:
    taken: list[dict[str, str]] = []
    others = {"x-forwarded-for": "10.0.0.9"}
    door.dispatcher.questions.offer("rain", lambda asked: taken.append(dict(asked)), changes=True)
    answer = door.ask("POST", "/farm/rain", headers=others)
    assert (answer.status, answer.json()["error"]["type"]) == (403, "Forbidden")
    assert taken == []
    assert door.ask("GET", "/farm/status").json()["is_owner"] is True
    assert door.ask("GET", "/farm/status", headers=others).json()["is_owner"] is False


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("nope", None, 404, "ModelNotFound", "'nope' is not served here"),
        ("forward?config={", None, 400, "InvalidInput", "the config in the query is not JSON"),
        ("forward?config=[]", None, 400, "InvalidInput", "config"),
        ('lab/sized?config={"n":-2}', None, 500, "InvalidOutput", "-2"),
        ("forward/evaluate", b"{", 400, "InvalidInput", "the body is not JSON"),
        ("forward/evaluate", b'{"input": []}', 400, "InvalidInput", "'input' is not a key"),
        ("nope/evaluate", b'{"inputs": []}', 404, "ModelNotFound", "'nope' is not served here"),
    ],
)
def test_what_cannot_be_asked_of_a_model_is_told(
    door: Door, path: str, body: bytes | None, status: int, kind: str, message: str
) -> None:
    response = door.ask("POST" if body else "GET", f"/farm/models/{path}", body)
    told = response.json()["error"]
    assert (response.status, told["type"]) == (status, kind)
    assert message in told["message"]


class Links(HTMLParser):
    """Collects what a browser would load or open."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        assert tag not in ("script", "link", "iframe", "img")


def test_the_page_needs_no_other_host(door: Door) -> None:
    answer = door.ask("GET", "/docs")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    links = Links()
    links.feed(answer.data.decode())
    assert links.found == ["openapi.json"]
    assert not re.search(r"https?://|url\(|@import", answer.data.decode())
    assert door.ask("GET", "/openapi.json").status == 200


def test_every_path_with_its_parameters_and_bodies_is_there(door: Door) -> None:
    page = door.ask("GET", "/docs").data.decode()
    for path, item in door.ask("GET", "/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            assert f"{method.upper()}</span><code>{path}</code>" in page
            assert operation["summary"] in page
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in page
    assert "<code>inputs</code></td><td>required; " in page
    assert "application/x-ndjson One JSON object a line" in page
    assert "[[1.0, 2.0], [3.0]]" in page


def test_texts_are_no_markup() -> None:
    page = reference_page(
        {
            "info": {"title": "<b>", "version": "1", "summary": "a & b"},
            "paths": {"/<x>": {"get": {"summary": "<script>alert(1)</script>"}}},
        }
    )
    assert "<script" not in page
    assert "<b>" not in page
    assert "a &amp; b" in page
    assert "/&lt;x&gt;" in page
