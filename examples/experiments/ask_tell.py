"""Ask and tell in twenty lines: a socket, JSON, and a farm that chooses the points.

farm experiment serve &
python examples/experiments/ask_tell.py
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any

CONFIG = (Path(__file__).parent / "by_hand.ini").read_text()


def main(port: int = 5555) -> None:
    with socket.create_connection(("127.0.0.1", port)) as server:

        def say(type: str, **message: Any) -> Any:
            server.sendall(json.dumps({"type": type, "message": message}).encode())
            answer = json.loads(server.recv(65536))
            if "server_error" in answer:
                raise SystemExit(answer["server_error"])
            return answer

        say("setup", config_str=CONFIG)
        finished = False
        while not finished:
            asked = say("ask")
            x = asked["config"]["x"][0]
            say("tell", config=asked["config"], outcome=-((x - 0.3) ** 2))  # maximised
            finished = asked["is_finished"]
        best = say("query", query_type="max")
        print(f"best at x = {best['x']['x'][0]:.3f}, expected 0.300 within 0.02")
        if abs(best["x"]["x"][0] - 0.3) > 0.02:
            raise SystemExit("that is too far off")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
