"""The status page: one self-contained HTML file that requests /farm/status every second."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable

from farm.bodies.unpacking import wrong_method
from farm.http1.request import Answer, Request

FILE = re.compile(r'<(?:link rel="stylesheet" href|script src)="([\w.]+)">(</script>)?')


def assembled(folder: Traversable) -> tuple[str, str]:
    """Return the page with the files that its `index.html` names, and its security policy.

    The policy allows no style or script but these, by their hashes, and requests to the farm alone.
    """
    allowed: dict[str, list[str]] = {"style": [], "script": []}

    def inline(found: re.Match[str]) -> str:
        tag = "script" if found[2] else "style"
        text = "\n" + folder.joinpath(found[1]).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    page = FILE.sub(inline, folder.joinpath("index.html").read_text(encoding="utf-8"))
    policy = "; ".join(
        [
            "default-src 'none'",
            *(f"{tag}-src {' '.join(hashes)}" for tag, hashes in allowed.items()),
            "connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'none'",
        ]
    )
    return page, policy


TEXT, POLICY = assembled(files("farm.server").joinpath("page"))
PAGE = TEXT.encode()

HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
)


def status_page(request: Request, answer: Answer) -> None:
    """Answer GET and HEAD with the page. Raises Refused."""
    if request.method not in ("GET", "HEAD"):
        raise wrong_method("the status page", request.method, "GET", "HEAD")
    answer(200, PAGE, HEADERS, b"text/html; charset=utf-8")
