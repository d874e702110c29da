"""Evaluate over HTTP by 1, 16 and 64 callers, farm beside the official UM-Bridge server.

    apt-get install wrk; make install && .venv/bin/python benchmarks/callers.py

The load comes from wrk, a client in C, so that the client takes little of the processors that it
shares with the servers; its processor time is printed. The servers take turns, in rounds, with one
worker process of the same trivial model, over connections that are kept and over a new one for each
call.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from lone_call import running
from machine import versions
from tests.support.lone_caller import BODY, EXPECTED, MODEL

CALLERS = (1, 16, 64)
SERVERS = ("farm", "official")
SCRIPT = """
wrk.method = "POST"
wrk.body = [==[BODY]==]
wrk.headers["Content-Type"] = "application/json"
if os.getenv("FRESH") == "1" then wrk.headers["Connection"] = "close" end
function response(status, headers, body)
    if status ~= 200 or not body:find("EXPECTED", 1, true) then os.exit(3) end
end
"""


def load(
    address: tuple[str, int], script: Path, callers: int, seconds: float, *, fresh: bool
) -> tuple[float, float]:
    """Return the calls per second, and the share of a processor that wrk took.

    Raises CalledProcessError after a wrong answer, and RuntimeError if connections failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["wrk", "-t1", f"-c{callers}", f"-d{seconds:g}s", "-s", str(script)]
    shown = subprocess.run(
        [*command, f"http://{address[0]}:{address[1]}/Evaluate"],
        env={**os.environ, "FRESH": str(int(fresh))},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", shown)
    if rate is None or "errors" in shown or "Non-2xx" in shown:
        raise RuntimeError(f"wrk says:\n{shown}")
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(rate[1]), used_s / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=2, help="length of each load")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("this needs wrk: apt-get install wrk")
    print(versions("uvloop", "httptools", "umbridge", "aiohttp"))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "model.py").write_text(MODEL)
        script = folder / "load.lua"
        text = SCRIPT.replace("BODY", BODY.decode()).replace("EXPECTED", EXPECTED.decode())
        script.write_text(text)
        servers = {kind: stack.enter_context(running(kind, folder))[0][kind] for kind in SERVERS}
        for address in servers.values():
            load(address, script, 16, 1, fresh=False)
        print(f"\n{'':22}{'farm':>10}{'official':>10}{'ratio':>8}  share of a processor, wrk")
        for fresh in (False, True):
            for callers in CALLERS:
                rates: dict[str, list[float]] = defaultdict(list)
                shares: dict[str, list[float]] = defaultdict(list)
                for _ in range(options.rounds):
                    for kind, address in servers.items():
                        rate, share = load(address, script, callers, options.seconds, fresh=fresh)
                        rates[kind].append(rate)
                        shares[kind].append(share)
                pairs = zip(rates["farm"], rates["official"], strict=True)
                ratio = statistics.median(ours / theirs for ours, theirs in pairs)
                line = f"{'fresh' if fresh else 'kept'}, {callers} callers"
                line = f"{line:22}" + "".join(
                    f"{statistics.median(rates[kind]):10.0f}" for kind in SERVERS
                )
                taken = ", ".join(f"{statistics.median(shares[kind]):.2f}" for kind in SERVERS)
                print(f"{line}{ratio:8.2f}  {taken}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
