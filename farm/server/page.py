"""The status page: one self-contained HTML file that asks /farm/status every second."""

from __future__ import annotations

from importlib.resources import files

from starlette.types import Receive, Scope, Send

from farm.server.door import Refused, answer_refused

PAGE = files("farm.server").joinpath("page.html").read_bytes()

HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-length", b"%d" % len(PAGE)),
    (b"cache-control", b"no-cache"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
]


async def status_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer GET and HEAD with the page."""
    if scope["method"] not in ("GET", "HEAD"):
        message = f"the status page is asked with GET, not {scope['method']}"
        allow = [(b"allow", b"GET, HEAD")]
        await answer_refused(send, Refused(405, "MethodNotAllowed", message, headers=allow))
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": PAGE})
