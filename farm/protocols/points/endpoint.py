"""farm's own interface under /farm: models, status, and evaluation of many points.

It is a FastAPI application, for its documentation at /docs; the protocols that have to be fast are
answered before it, in `server/doors.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import Any

import orjson
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from farm.bodies.body import HeldBody
from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import carried_out
from farm.bodies.unpacking import Refused
from farm.call import EMPTY_CONFIG, QUESTIONS, Hints, ModelInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.encoding.config import decode_config
from farm.encoding.errors import encode_error, error_body
from farm.encoding.json_numbers import NonFinite, parse
from farm.errors import INTERNAL_ERROR, FarmError, ModelNotFound
from farm.http1.asgi import IS_OWNERS, ClientGone, hints_in, read_body
from farm.protocols.points.batches import ReadPoints, decode_batches
from farm.protocols.points.codec import KEYS, decode_points
from farm.protocols.points.endpoint_stream import IN_FLIGHT, AnyPoints, PointStream
from farm.version import __version__

BY_GET = ("status", "models")
KINDS = {403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed"}
UNKNOWN_PATH = (
    "nothing is at {path}; UM-Bridge is at /Info, /Evaluate and so on, in exactly these letters, "
    "KServe v2 below /v2, farm's own interface is described at /docs"
)

EVALUATE_DOC = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "additionalProperties": False,
                    "properties": {key: {"description": text} for key, text in KEYS.items()},
                },
                "examples": {
                    "in order": {"value": {"inputs": [[[1.0, 2.0], [3.0]], [[4.0, 5.0], [6.0]]]}},
                    "by name": {"value": {"inputs": [{"x": [1.0, 2.0]}], "config": {"mesh": 2}}},
                },
            }
        },
    },
    "responses": {
        200: {
            "description": "One JSON object a line, as points finish: index, status done with "
            "outputs, run_time_s, queue_time_s, worker, copied if a copy of it ran, and reused if "
            "the answer comes from the record; or status failed with error.",
            "content": {"application/x-ndjson": {}},
        }
    },
}


def create_api(
    backend: Dispatcher, *, non_finite: NonFinite, readers: Reads = READS_HERE
) -> FastAPI:
    """Return the FastAPI application. readers: decode long bodies."""
    api = FastAPI(
        title="farm",
        version=__version__,
        summary="Any model as a service that a whole cluster works for",
        docs_url=None,
        redoc_url=None,
    )
    _answer_errors_in_one_form(api)

    @api.get("/docs", include_in_schema=False)
    async def reference() -> HTMLResponse:
        return HTMLResponse(reference_page(api.openapi()))

    @api.get("/farm/status", summary="Workers, queues, rates and percentiles")
    async def status(request: Request) -> Response:
        return _json({**backend.snapshot(), "is_owner": request.scope[IS_OWNERS]()})

    @api.get("/farm/models", summary="The models that are served")
    async def models() -> Response:
        return _json([_shown(info) for info in backend.models().values()])

    @api.get("/farm/models/{name:path}", summary="One model, described for a config")
    async def model(
        name: str, config: str = Query(EMPTY_CONFIG, description="the config as JSON text")
    ) -> Response:
        text = config.encode()
        message = {"config": parse(text, "the config in the query")}
        await backend.first_worker.known(name)
        found = decode_config(message, b'{"config":%b}' % text)
        return _json(_shown(await backend.describe(name, found)))

    @api.post(
        "/farm/models/{name:path}/evaluate",
        summary="Evaluate many points; the answer streams as they finish",
        openapi_extra=EVALUATE_DOC,
    )
    async def evaluate(name: str, request: Request) -> Response:
        hints = hints_in(request.scope)
        body = await read_body(request.receive)
        await backend.first_worker.known(name)
        points: AnyPoints
        if isinstance(body, HeldBody):
            points, info = await _read_elsewhere(name, body, hints)
        else:
            points = decode_points(body, non_finite)
            info = await backend.describe(name, points.config)
        return PointStream(backend, points, info, hints, in_flight=IN_FLIGHT, readers=readers)

    @api.get("/farm/{question}", summary="A question about the farm, such as failures or history")
    @api.post("/farm/{question}", summary="An action of the owner, such as drain or cancel")
    async def ask(question: str, request: Request) -> Response:
        # The paths above get here by POST alone.
        changes = False if question in BY_GET else backend.questions.changes(question)
        if changes is None:
            raise HTTPException(404)
        method = "POST" if changes else "GET"
        if request.method != method:
            raise HTTPException(405, headers={"allow": method})
        if changes and not request.scope[IS_OWNERS]():
            raise Refused(
                403,
                "Forbidden",
                "this is for the owner of the farm: ask as the user who started it, or with the "
                "farm's token",
            )
        scope = request.scope
        asker = hints_in(scope).client
        return _json(await backend.questions.ask(question, dict(request.query_params), asker=asker))

    async def _read_elsewhere(
        name: str, body: HeldBody, hints: Hints
    ) -> tuple[ReadPoints, ModelInfo]:
        """Return the points of a long request, and the model's description for their config."""
        served = backend.models().get(name)
        infos = {} if served is None else {EMPTY_CONFIG: served}
        while True:
            about = (body, non_finite, infos)
            config, batches = await carried_out(readers, decode_batches, *about, hints=hints)
            info = await backend.describe(name, config)
            if batches is not None:
                return ReadPoints(config, batches), info
            infos = {config: info}

    return api


def _shown(info: ModelInfo) -> dict[str, Any]:
    """Return a description as JSON data, with the operations that points may request."""
    return replace(info, operations=info.operations - QUESTIONS).to_json()


def _json(data: Any, status: int = 200) -> Response:
    content = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, media_type="application/json")


def _answer_errors_in_one_form(api: FastAPI) -> None:
    """Give every error the body of UM-Bridge's errors, the framework's own errors included."""

    @api.exception_handler(FarmError)
    async def farm_error(request: Request, error: FarmError) -> Response:
        status, body = encode_error(error)
        if isinstance(error, ModelNotFound):
            status = 404  # in UM-Bridge it is 400, which is odd where the path names the model
        return Response(body, status, media_type="application/json")

    @api.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return _error(error.status, error.kind, error.message)

    @api.exception_handler(ClientGone)
    async def client_gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # the client has disconnected

    @api.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path, method = request.url.path[:80], request.method
        message = {404: UNKNOWN_PATH.format(path=path), 405: f"{path} does not take {method}"}.get(
            error.status_code, str(error.detail)
        )
        kind = KINDS.get(error.status_code, "InvalidInput")
        response = _error(error.status_code, kind, message)
        response.headers.update(error.headers or {})
        return response

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return _error(400, "InvalidInput", f"{where}: {first['msg']}")

    @api.exception_handler(Exception)
    async def mistake(request: Request, error: Exception) -> Response:
        return _error(500, "InternalError", INTERNAL_ERROR)  # the framework raises it again


def _error(status: int, kind: str, message: str) -> Response:
    return Response(error_body(kind, message), status, media_type="application/json")


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .2rem; border-top: 1px solid #ddd; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; background: #f3f3f3; border-radius: 3px }
code { padding: .1em .3em } pre { padding: .6rem .8rem; overflow-x: auto }
.method { color: #fff; background: #357; padding: 0 .5em; border-radius: 3px; margin-right: 1ex }
th, td { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 }
  code, pre { background: #2a2a2a } h2 { border-color: #444 } }
"""

METHODS = ("get", "put", "post", "delete", "patch")


def reference_page(description: Mapping[str, Any]) -> str:
    """Return the HTML page at /docs for an OpenAPI 3 description, as of `FastAPI.openapi()`.

    FastAPI's own page loads its program from another host, which cluster machines cannot reach.
    """
    info = description["info"]
    title = f"{info['title']} {info['version']}"
    operations = [
        part
        for path, item in description["paths"].items()
        for method in METHODS
        if method in item
        for part in _operation(method, path, item[method])
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{escape(title)}</h1><p>{escape(info.get('summary', ''))}.</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(operations)}</html>\n"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><span class="method">{method.upper()}</span><code>{escape(path)}</code></h2>'
    yield f"<p>{escape(operation.get('summary', ''))}.</p>"
    parameters = [
        (p["name"], f"{p['in']}; {p.get('description', '') or p['schema'].get('type', '')}")
        for p in operation.get("parameters", ())
    ]
    yield _table("Parameters", parameters)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        properties = content.get("schema", {}).get("properties", {})
        required = content.get("schema", {}).get("required", ())
        rows = [
            (name, ("required; " if name in required else "") + about.get("description", ""))
            for name, about in properties.items()
        ]
        yield _table(f"Body, {kind}", rows)
        for name, example in content.get("examples", {}).items():
            text = json.dumps(example["value"])
            yield f"<p>Example, {escape(name)}:</p><pre>{escape(text)}</pre>"
    answers = [
        (status, f"{', '.join(answer.get('content', ()))} {answer['description']}")
        for status, answer in operation.get("responses", {}).items()
        if not answer["description"].endswith("Validation Error")
    ]
    yield _table("Answers", answers)


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td><code>{escape(str(name))}</code></td><td>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><tr><th>{escape(title)}</th><th></th></tr>{cells}</table>"
