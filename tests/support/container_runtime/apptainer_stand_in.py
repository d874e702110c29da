"""A stand-in for apptainer: `run` becomes the server, on the host's network.

The image selects what happens: good.sif, taken.sif (the first run finds its port in use), bad.sif.
"""

import itertools
import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["FAKE_CONTAINERS"])
SERVER = Path(__file__).parent / "umbridge_server.py"
assert sys.argv[1] == "run"
words = sys.argv[2:]
first = not (STATE / "runs").exists()
with (STATE / "runs").open("a") as file:
    file.write(json.dumps(words) + "\n")
environment = dict(os.environ)
for option, value in itertools.pairwise(words):
    if option == "--env":
        environment[value.split("=")[0]] = value.split("=", 1)[1]
if "--nv" in words:
    environment["DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
image = Path(words[-1]).name
if image == "bad.sif":
    sys.exit("FATAL:   could not open image /bad.sif: failed to retrieve path")
if image == "taken.sif" and first:
    sys.exit("OSError: [Errno 98] Address already in use")
os.execve(sys.executable, [sys.executable, "-I", "-S", str(SERVER)], environment)
