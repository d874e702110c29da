"""The examples of docs/mip.md work as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import kubemo

from farm.protocols.mip.connection import SENT_AHEAD
from farm.protocols.mip.protocol import MAX_BYTES
from farm.protocols.mip.service import TIMEOUTS
from tests.support.dispatcher_farm import LIMIT_S, serving

PAGE = (Path(__file__).parents[2] / "docs" / "mip.md").read_text()
SHOUT, CALL, BEHIND = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_models_and_the_client(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    with serving(tmp_path, "shout.py", "--mip", "127.0.0.1:0") as served:
        (address,) = served.connection.addresses["mip"]
        program = CALL.replace("tcp://127.0.0.1:9000", address)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert done.stdout == "HELLO!! [7.0]\nBYE [3.0]\n"
        second = tmp_path / "second"
        second.mkdir()
        url = address.replace("tcp", "mip")
        (second / "behind.py").write_text(BEHIND.replace("mip://127.0.0.1:9000", url))
        with serving(second, "behind.py", "--mip", "behind=unix:s") as behind:
            (there,) = behind.connection.addresses["mip"]
            entry = (kubemo.Text("hello"), kubemo.Text("[2]"))
            ((loud, length),) = kubemo.Client().inference(there, (entry,))
    assert (loud.decode(), length.decode()) == ("HELLO!!", [7.0])


def test_the_numbers_that_it_tells() -> None:
    assert f"up to {SENT_AHEAD} run at once" in PAGE
    assert (TIMEOUTS.head_s, TIMEOUTS.body_s, TIMEOUTS.rate) == (10, 30, 64 * 1024)
    assert f"after {TIMEOUTS.idle_s:g} seconds without a request" in PAGE
    assert MAX_BYTES == 64 << 20
