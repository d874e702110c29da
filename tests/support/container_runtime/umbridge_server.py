"""A small UM-Bridge server of the standard library, as containers hold: python3 umbridge_server.py

It listens on PORT, prints a line, and has the models `double` and `device`. The call of `double`
with 13 ends the server; `device` answers with the length of the variable DEVICES.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of UM-Bridge 1.0 that a model without derivatives gets."""

    def do_GET(self) -> None:
        self.answer({"protocolVersion": 1.0, "models": ["double", "device"]})

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/ModelInfo":
            answer: object = {"support": {"Evaluate": True}}
        elif self.path == "/InputSizes":
            answer = {"inputSizes": [1]}
        elif self.path == "/OutputSizes":
            answer = {"outputSizes": [1]}
        else:
            x = question["input"][0][0]
            if x == 13:
                print("unlucky", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            is_double = question["name"] == "double"
            answer = {"output": [[2 * x if is_double else len(os.environ.get("DEVICES", ""))]]}
        self.answer(answer)

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


try:
    server = HTTPServer((os.environ.get("HOST", "127.0.0.1"), int(os.environ["PORT"])), Handler)
except OSError as error:
    sys.exit(str(error))
print(f"serves on {server.server_port}", flush=True)
server.serve_forever()
