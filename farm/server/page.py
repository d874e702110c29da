"""The status page: one self-contained HTML file that requests /farm/status every second."""

from __future__ import annotations

from importlib.resources import files

from farm.bodies.unpacking import Refused
from farm.http.request import Answer, Request

PAGE = files("farm.server").joinpath("page.html").read_bytes()

HEADERS = (
    (b"cache-control", b"no-cache"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
)


def status_page(request: Request, answer: Answer) -> None:
    """Answer GET and HEAD with the page. Raises Refused."""
    if request.method not in ("GET", "HEAD"):
        message = f"the status page is asked with GET, not {request.method}"
        raise Refused(405, "MethodNotAllowed", message, headers=((b"allow", b"GET, HEAD"),))
    answer(200, PAGE, HEADERS, b"text/html; charset=utf-8")
