"""A running program of the line protocol: one JSON object per line, in and out (docs/lines.md)."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import orjson

from farm.encoding.json_numbers import parse
from farm.errors import FarmError, ModelFailed, Unavailable, error_named
from farm.machine.lifeline import TiedProcess
from farm.machine.programs import EXIT_PROGRAM_KILLED, in_words
from farm.worker.output_tail import OutputTail
from farm.worker.servers import SEAT

REPLY = b'{"id":'
"""How each reply begins; what else is on standard output goes to the log."""

GOODBYE_S = 2.0
"""Time for the program to end after its standard input has ended."""

KINDS = frozenset({"InvalidInput", "ModelFailed", "UnsupportedFeature"})
"""Errors that a program may give a call by name."""


class LineProgram:
    """A program, started by the constructor; it ends with this process, for any reason.

    Raises ValueError if it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._shown = shlex.join(command)
        self._asked = 0
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tail = OutputTail()
        try:
            self._tied = TiedProcess(
                lambda lifeline: command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise ValueError(f"{self._shown} cannot be started: {error}") from error
        process = self._tied.process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin: IO[bytes] = process.stdin
        self._errors = self._tail.follow(process.stderr)
        threading.Thread(
            target=self._read, args=(process.stdout,), name="replies", daemon=True
        ).start()

    def lives(self) -> bool:
        """Whether the program runs."""
        return self._tied.lives()

    def ask(self, op: str, request: Mapping[str, Any], *, limit_s: float | None = None) -> Any:
        """Send a request and return the reply, an object.

        Raises the FarmError that the program names, ModelFailed if it ends or does not keep to the
        protocol, Unavailable if it gives no reply within `limit_s` seconds. After a signal ended
        the program, a process with a supervisor ends as well: its calls run again elsewhere.
        """
        self._asked += 1
        line = orjson.dumps({"id": self._asked, "op": op, **request}) + b"\n"
        try:
            self._stdin.write(line)
            self._stdin.flush()
        except (BrokenPipeError, ValueError):
            self._ended(op)
        try:
            reply = self._replies.get(timeout=limit_s)
        except queue.Empty:
            self._tied.close()
            raise Unavailable(
                f"{self._shown} did not answer {op!r} within {limit_s:g} s; expected a line that "
                f"begins with {REPLY.decode()} (docs/lines.md). Last output: {self._tail.last()}",
                detail=self._tail.text(),
            ) from None
        if reply is None:
            self._ended(op)
        return self._checked(reply, op)

    def close(self) -> None:
        """Let the program end, and kill it if it does not."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._tied.process.wait(0 if sys.is_finalizing() else GOODBYE_S)
        self._tied.close()

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                start = 0 if line.startswith(REPLY) else line.rfind(REPLY)
                if start < 0:
                    self._tail.take([line])
                    continue
                if start:  # it printed without a line end before it answered
                    self._tail.take([line[:start]])
                try:
                    self._replies.put(parse(line[start:]))
                except FarmError as error:
                    self._replies.put(error)
        self._replies.put(None)

    def _checked(self, reply: Any, op: str) -> Any:
        fault = ""
        if isinstance(reply, FarmError):
            fault = f"a line that is not JSON: {reply}"
        elif reply.get("id") != self._asked:
            fault = f"id {reply.get('id')!r}"
        if fault:
            self._tied.close()
            raise ModelFailed(
                f"{self._shown} answered {op!r} with {fault}; expected one reply, with id "
                f"{self._asked} (docs/lines.md)",
                detail=self._tail.text(),
            )
        if "error" in reply:
            kind = reply.get("kind", "ModelFailed")
            raise error_named(
                kind if kind in KINDS else "ModelFailed",
                str(reply["error"]),
                str(reply.get("detail") or self._tail.text()),
            )
        return reply

    def _ended(self, op: str) -> Any:
        """Raise ModelFailed for a program that ended, or end this process as it did."""
        try:
            code = self._tied.process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            code = None  # it closed its standard output and lives
        self._tied.close()
        self._errors.join(GOODBYE_S)
        how = "closed its standard output" if code is None else "ended"
        words = "" if code is None else f" with {in_words(code, out_of_memory=False)}"
        message = f"{self._shown} {how}{words} during {op!r}: {self._tail.last()}"
        if code is not None and code < 0 and SEAT in os.environ:
            print(f"farm: {message}; this process ends", file=sys.stderr, flush=True)
            if code == -signal.SIGKILL:  # the supervisor knows whether memory was short
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(EXIT_PROGRAM_KILLED)
        raise ModelFailed(message, detail=self._tail.text())
