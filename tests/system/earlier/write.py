"""Write the samples in this folder with the farm version whose files later ones must open.

    git worktree add /tmp/then COMMIT && cd EMPTY_FOLDER && PYTHONPATH=/tmp/then python .../write.py

It uses only farm's command line and AEPsych's protocol, so any version of farm can run it. It
writes the version's answers to the queries of the test to `answers.json`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FARM = (sys.executable, "-m", "farm")
BEAM = Path(__file__).with_name("beam.py")
SWEEP = ("--param", "E=1:2", "--param", "load=0:1", "--seed", "7", "-n", "1", "--no-probe")

X = {"par_type": "continuous", "lower_bound": 0, "upper_bound": 1}
CONFIG: dict[str, Any] = {
    "common": {
        "parnames": ["x", "y"],
        "outcome_types": ["continuous"],
        "strategy_names": ["begin", "go_on"],
    },
    "x": X,
    "y": {**X, "lower_bound": -5, "upper_bound": 5},
    "begin": {"generator": "RandomGenerator", "min_asks": 3},
    "go_on": {"generator": "RandomGenerator", "min_asks": 1000},
    "metadata": {"experiment_name": "bending", "participant_id": "p1"},
}
SEEDED = {
    **CONFIG,
    "begin": {**CONFIG["begin"], "seed_data_conditions": "like"},
    "like": {"experiment_name": ["bending"]},
}


class Client:
    """One client of a server of experiments."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def ask(self, kind: str, message: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return the answer."""
        self._socket.sendall(json.dumps({"type": kind, "message": message or {}}).encode())
        data = b""
        while True:
            data += self._socket.recv(1 << 16)
            with contextlib.suppress(ValueError):
                return json.loads(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@contextlib.contextmanager
def served(journal: Path, *, end: int = signal.SIGTERM) -> Iterator[Client]:
    """Connect to a server of this journal; afterwards send the server the signal `end`."""
    words = ("experiment", "serve", "--aepsych", "127.0.0.1:0", "--journal", journal.name)
    with subprocess.Popen(
        [*FARM, *words], cwd=journal.parent, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline())
        assert found is not None
        client = Client(int(found[1]))
        yield client
        process.send_signal(end)
        client.close()


def fill(client: Client, config: Mapping[str, Any], *, told: int) -> None:
    """Create an experiment with five points, some of which are told."""
    client.ask("setup", {"config_dict": config})
    points = client.ask("ask", {"num_points": 5})["config"]
    for k in range(told):
        point = {name: values[k] for name, values in points.items()}
        client.ask("tell", {"config": point, "outcome": k / 3, "note": f"n{k}"})


def answers(journal: Path) -> list[Any]:
    """Return a server's answers about each experiment, and its next points."""
    said = []
    with served(journal) as client:
        for number in range(3):
            assert client.ask("resume", {"strat_id": number}) == {"strat_id": number}
            info = client.ask("info")
            del info["db_name"]
            said.append([info, client.ask("ask", {"num_points": 2})])
        said.append(client.ask("setup", {"config_dict": CONFIG}))
    return said


def shown(journal: Path) -> Any:
    """Return the output of `farm experiment status`, and the trials of each experiment."""
    command = [*FARM, "experiment", "status", str(journal), "--json"]
    said = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            out = Path(folder) / f"{number}.csv"
            subprocess.run(
                [*FARM, "experiment", "export", str(journal), str(out), "--id", str(number)],
                check=True,
                capture_output=True,
            )
            said.append(out.read_text().splitlines())
    return said


def sweep(*words: str, folder: Path) -> None:
    """Run `farm sweep` to its end; some points fail."""
    done = subprocess.run([*FARM, "sweep", *words], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert done.returncode in (0, 1), done.stderr


def table(path: Path) -> list[list[str]]:
    """Return a sweep as a table: point, parameters, outputs and status of each row."""
    command = [*FARM, "sweep", "export", str(path), "--csv", "-"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split(",") for line in text.splitlines()]
    at = rows[0].index("status")
    return [row[: at + 1] for row in rows]


def main() -> None:
    folder = Path.cwd()
    shutil.copy(BEAM, folder)
    begin = (*SWEEP, "--design", "random:24", BEAM.name)
    sweep(*begin, "-o", "finished.h5", folder=folder)
    slow = [*FARM, "sweep", *begin, "--fix", "sleep=0.05", "-o", "killed.h5"]
    with subprocess.Popen(slow, cwd=folder, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                if json.loads((folder / "killed.h5.status.json").read_text())["done"] >= 10:
                    break
            time.sleep(0.01)
        process.kill()
    for name, end in (("closed.db", signal.SIGTERM), ("killed.db", signal.SIGKILL)):
        with served(folder / name, end=end) as client:
            for config, told in ((CONFIG, 4), (SEEDED, 2), (CONFIG, 0)):
                fill(client, config, told=told)
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.run", "*.lock"))
        said["finished.h5"] = table(copy / "finished.h5")
        said["killed.h5"] = table(copy / "killed.h5")
        sweep("--resume", "killed.h5", str(BEAM), "-n", "1", folder=copy)
        said["killed.h5 resumed"] = table(copy / "killed.h5")
        for journal in ("closed.db", "killed.db"):
            said[journal] = shown(copy / journal)
            said[f"{journal} resumed"] = answers(copy / journal)
    (folder / "answers.json").write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
