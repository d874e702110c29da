"""A program of the line protocol with every feature and every fault: python3 line_models.py MODE"""

import json
import os
import sys
import time
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"


def reply(number: int, **fields: Any) -> None:
    print(json.dumps({"id": number, **fields}, separators=(",", ":")), flush=True)


def described(request: dict[str, Any]) -> dict[str, Any]:
    size = int(request["config"].get("n", 2))
    return {
        "name": "all",
        "inputs": {"x": [size], "count": {"shape": [], "dtype": "int64", "unit": "1"}},
        "outputs": {"y": [size], "total": []},
        "operations": [
            *("evaluate", "gradient", "apply_jacobian", "apply_hessian"),
            *("value_and_gradient", "cost"),
        ],
        "version": "7",
        "copies": False,
    }


def answered(request: dict[str, Any]) -> dict[str, Any]:
    op = request["op"]
    x = [float(v) for v in request["inputs"][0]]
    count = request["inputs"][1][0]
    if request["config"].get("fault"):
        faulty(request["id"], request["config"]["fault"])
    match op:
        case "evaluate":
            y = [v * count for v in x]
            texts = [json.dumps(v).strip('"') for v in y]
            return {
                "outputs": [[t if "n" in t else v for t, v in zip(texts, y, strict=True)], count]
            }
        case "cost":
            return {"value": 3.5}
        case "apply_jacobian":
            return {"value": [v * count for v in request["vec"]]}
        case "apply_hessian":
            wrt = [request[key] for key in ("out_wrt", "in_wrt1", "in_wrt2")]
            assert wrt == [0, 0, 0]
            return {"value": [0.0 for v in request["vec"]]}
    value = [v * count for v in request["sens"]]
    outputs = {} if op == "gradient" else {"outputs": {"total": count, "y": [v * count for v in x]}}
    return {**outputs, "value": value}


def faulty(number: int, fault: str) -> None:
    match fault:
        case "exit":
            print("no licence", file=sys.stderr, flush=True)
            sys.exit(3)
        case "kill":
            os.kill(os.getpid(), 9)
        case "segfault":
            os.kill(os.getpid(), 11)
        case "raise":
            reply(number, error="went wrong", detail="line 7")
        case "refuse":
            reply(number, error="x is bad", kind="InvalidInput")
        case "other":
            reply(number, error="is lost", kind="WorkerLost")
        case "id":
            reply(number + 1, value=[1])
        case "bytes":
            print(f'{{"id":{number},', flush=True)
        case "shape":
            reply(number, outputs=[[1, 2, 3], 1])
        case "nothing":
            reply(number)
        case "close":
            os.close(1)
            time.sleep(60)
        case "chatter":
            print("x" * (1 << 18))
            print('a note {"id": 5} and ', end="")
            reply(number, outputs=[[1, 2], 3])


def rows() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "describe":
            shapes = {"inputs": {"x": [2]}, "outputs": {"y": [1]}}
            reply(request["id"], **shapes, max_batch=8)
            continue
        (x,) = request["inputs"]
        assert len(x) == 2 * request["rows"]
        y = [x[2 * i] + x[2 * i + 1] for i in range(request["rows"])]
        reply(request["id"], outputs=[[100 * request["rows"] + v for v in y]])


if MODE == "silent":
    print("thinks", file=sys.stderr, flush=True)
    time.sleep(60)
if MODE == "ends":
    sys.exit("no licence")
if MODE == "shapeless":
    sys.stdin.readline()
    reply(1, inputs={"x": ["a"]}, outputs={"y": [1]})
if MODE == "rows":
    rows()
faults = ("raise", "refuse", "other", "id", "bytes", "shape", "nothing", "close", "chatter")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "describe":
        assert asked["protocol"] == 1
        reply(asked["id"], **described(asked))
        continue
    answer = answered(asked)
    if asked["config"].get("fault") not in faults:
        reply(asked["id"], **answer)
