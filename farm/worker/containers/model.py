"""The models of a container: it is started, awaited, and removed with this process.

The container ends or stops answering: then a process with a supervisor ends too, and the supervisor
starts another one with a new container.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping

from farm.errors import FarmError, Unavailable
from farm.machine.lifeline import TiedProcess
from farm.machine.programs import in_words
from farm.model import Model
from farm.worker.containers.keeping import Guard, asked, labels, new_name, remove_leftovers
from farm.worker.containers.runtime import (
    APPTAINER,
    IN_USE,
    PORT,
    Image,
    fault_in,
    free_port,
    is_anothers,
    parsed,
    program_of,
    run_command,
)
from farm.worker.output_tail import OutputTail
from farm.worker.servers import SEAT, Replica, end_process, models_of

PULL_S = 3600.0
"""Time for the runtime to get the image and start the container."""

ANSWER_S = 600.0
"""Time for the server in a running container to answer."""

LOOK_S = 0.1

OUTPUT_S = 2.0
"""Time for the last output of a program that has ended."""

TRIES = 5
"""Ports to try if other programs take them before the container of apptainer does."""


def models_at(url: str, name: str | None = None) -> Mapping[str, Model]:
    """Start a container of the image and return the models of its server, or the one called `name`.

    Raises Unavailable if it cannot be started or does not answer, and the FarmErrors of UM-Bridge's
    client.
    """
    try:
        image = parsed(url)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    program = program_of(image.runtime)
    for _ in range(TRIES):
        container = Container(program, image)
        try:
            models = container.awaited(name)
        except FarmError as error:
            container.close()
            if container.lost_port or IN_USE.search(container.tail.text()):
                last = error
                continue
            raise
        atexit.register(container.close)
        return container.watched(models)
    raise last


class Container:
    """A container of this process, started by the constructor. Raises Unavailable."""

    def __init__(self, program: str, image: Image) -> None:
        self._program, self._image = program, image
        self._name = new_name()
        self._guard: Guard | None = None
        self._closed = False
        self._port = free_port() if image.runtime == APPTAINER else 0
        self.lost_port = False
        self.tail = OutputTail()
        command = run_command(program, image, self._port, name=self._name, labels=labels())
        if image.runtime != APPTAINER:
            self._remove_leftovers()
            self._guard = Guard(program, self._name)
        self._tied = TiedProcess(
            lambda lifeline: command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._tied.process.stdout is not None
        self._output = self.tail.follow(self._tied.process.stdout)

    def awaited(self, name: str | None) -> Mapping[str, Model]:
        """Return the models of the server once it answers. Raises Unavailable."""
        limit = time.monotonic() + PULL_S
        while not self._port:
            self._check(limit, f"started no container within {PULL_S:g} s")
            self._port = self._published()
        limit = time.monotonic() + ANSWER_S
        while True:
            try:
                models = models_of(self._url() if name is None else f"{name}@{self._url()}")
                break
            except Unavailable:
                where = PORT if self._guard else self._port
                self._check(
                    limit,
                    f"runs, but no UM-Bridge server answered at its port {where} within "
                    f"{ANSWER_S:g} s; expected one that listens on the port in the variable PORT",
                )
        if not self._guard and is_anothers(self._port, self._tied.pid):
            self.lost_port = True
            raise self._error(f"wanted port {self._port}, which another program took")
        for model in models.values():
            model.description = f"{model.name} in {self._image}"
        return models

    def watched(self, models: Mapping[str, Model]) -> Mapping[str, Model]:
        """Return the models such that this process ends with the container, if supervised."""
        if SEAT not in os.environ:
            return models
        threading.Thread(target=self._end_with, name="container", daemon=True).start()
        return {name: Replica(model, self._url()) for name, model in models.items()}

    def close(self) -> None:
        """End and remove the container. May be called twice."""
        self._closed = True
        self._tied.close()
        guard, self._guard = self._guard, None
        if guard is not None:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                guard.close()
        self._output.join(OUTPUT_S)

    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _check(self, limit: float, late: str) -> None:
        """Wait a little. Raises Unavailable if the container has ended or the limit has passed."""
        try:
            code = self._tied.process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > limit:
                raise self._error(late) from None
            return
        self._output.join(OUTPUT_S)
        raise self._error(f"ended with {in_words(code, out_of_memory=False)}")

    def _error(self, what: str) -> Unavailable:
        fault = fault_in(self.tail.text())
        advice = f" ({fault})" if fault else ""
        return Unavailable(
            f"the container of {self._image} {what}{advice}. Its last output: {self.tail.last()}",
            detail=self.tail.text(),
        )

    def _published(self) -> int:
        """Return the port at which the runtime publishes the container's; 0 if it does not run."""
        told = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = asked([self._program, "port", self._name, f"{PORT}/tcp"])
        ports = [line.rpartition(":")[2] for line in told.splitlines() if "127.0.0.1:" in line]
        return int(ports[0]) if ports else 0

    def _remove_leftovers(self) -> None:
        try:
            removed = remove_leftovers(self._program)
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", "") or error)
            fault = fault_in(said)
            if fault:
                raise Unavailable(
                    f"{self._image.runtime} cannot be used: {fault}. It printed: "
                    f"{' '.join(said.split())}"
                ) from None
            return  # what it complains about, `run` will too
        for name in removed:
            self.tail.take([f"farm: removed the container {name}, whose worker has ended".encode()])

    def _end_with(self) -> None:
        code = self._tied.process.wait()
        if not self._closed:
            self._output.join(OUTPUT_S)
            end_process(self._error(f"ended with {in_words(code, out_of_memory=False)}"))
