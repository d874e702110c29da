"""The parent of a front door, which starts it again when it crashes. Run by path, as a program.

    python -I -S keeper.py COMMAND...

It is small so that nothing in it can crash: it imports nothing of farm and no package, and has
no connection to a client. It holds the front door's listening sockets, so that the next one has
the same ports and clients that connect meanwhile wait; it never accepts. `keeper_line.py` is the
front door's end of the line between the two.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time

MOST_CRASHES = 5
WITHIN_S = 60.0
"""The keeper gives up at this many crashes within this time, or in a row before one has served."""

FIRST_DELAY_S = 0.5
"""Delay after the second crash within WITHIN_S, then twice that and so on; none after the first."""

ORDERLY_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""A front door that one of these has ended was asked to end (systemd.service(5), on-failure)."""

INTERRUPTED, REFUSED = 130, 2
"""Exit statuses: ended by Ctrl-C while it started; a user's mistake or a place that is taken."""

SAID_BYTES = 65536
LINE = "FARM_KEEPER"
"""Environment variable of a front door: the descriptor of its end of the line."""


class FrontDoor:
    """One front door process and its line, on which it says how far it is.

    serves, ends: whether it has said so. error: why it could not start, or what it ended with.
    """

    def __init__(self, command: list[str], greeting: list[tuple[bytes, list[int]]]) -> None:
        """Start it. greeting: the messages and descriptors that it finds on its line."""
        self.serves = self.ends = False
        self.error = ""
        self.pid = 0
        self.line: socket.socket | None = None
        self._unread = b""
        self._unclaimed: list[int] = []  # descriptors whose lines have not been read
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        environment = {**os.environ, LINE: str(theirs.fileno())}
        try:
            self.pid = os.posix_spawn(
                command[0],
                command,
                environment,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores in itself
            )
        except OSError as error:
            self.error = f"cannot start {command[0]}: {error.strerror}"
            ours.close()
            return
        finally:
            theirs.close()
        self.line = ours
        with contextlib.suppress(OSError):  # it has ended already
            for message, descriptors in greeting:
                if descriptors:
                    socket.send_fds(ours, [message], descriptors)
                else:
                    ours.sendall(message)
        ours.setblocking(False)

    def say(self, message: bytes) -> None:
        """Send it a message, if it still listens."""
        if self.line is not None:
            with contextlib.suppress(OSError):  # it has ended
                self.line.sendall(message)

    def listen(self) -> list[tuple[bytes, int]]:
        """Read what it says; return the names and descriptors of sockets that it hands over."""
        sockets: list[tuple[bytes, int]] = []
        while self.line is not None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.line, SAID_BYTES, 64)
            except BlockingIOError:
                break
            except OSError:
                data, descriptors = b"", []
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            self._unclaimed += descriptors
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                sockets += self._heard(line)
            if not data:
                self._hang_up()
        return sockets

    def exit_code(self) -> int | None:
        """Return its exit status, or minus its signal; None while it lives."""
        if not self.pid:
            return 1 if self.error else None  # it could not be started
        while True:  # in a container this may be process 1, which reaps all orphans
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if not pid:
                return None
            if pid == self.pid:
                return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Release what is left of a process that has ended."""
        self.pid = 0
        self._hang_up()
        for descriptor in self._unclaimed:
            os.close(descriptor)
        self._unclaimed = []

    def _hang_up(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None

    def _heard(self, line: bytes) -> list[tuple[bytes, int]]:
        word, _, rest = line.partition(b" ")
        if word == b"socket":
            if self._unclaimed:  # it is lost if this process may open no more files
                return [(rest, self._unclaimed.pop(0))]
        elif word == b"serves":
            self.serves = True
        elif word == b"ends":
            self.ends = True
        elif word == b"error":
            self.error = rest.decode(errors="replace")
        return []


class Keeper:
    """Keeps one front door alive: `command` starts it."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._sockets: list[tuple[bytes, int]] = []
        self._crashed_at: list[float] = []
        self._crashes_in_a_row = 0
        self._restarts = 0
        self._reason = ""
        self._stops = 0  # signals that asked to stop
        self._next_stops = False  # a front door was started only to stop
        self._door: FrontDoor | None = None  # the one that runs now

    def run(self) -> int:
        """Start the front door, again after each crash, until it ends in order; return its status.

        Return the status of the last one if they crash again and again.
        """
        wake = _signals()
        start_at = time.monotonic()
        while True:
            if self._door is None and (self._stops or time.monotonic() >= start_at):
                # If asked to stop between two front doors, let the next one end the jobs in order.
                self._door = FrontDoor(self._command, self._greeting())
            self._wait(wake, start_at)
            door = self._door
            if door is None or (code := door.exit_code()) is None:
                continue
            self._listen(door)
            door.close()
            self._door = None
            if self._is_final(door, code):
                return _status(code)
            delay_s = self._crashed(door, code)
            if delay_s is None:
                return _status(code)
            start_at = time.monotonic() + delay_s

    def _greeting(self) -> list[tuple[bytes, list[int]]]:
        """Return what the next front door finds on its line."""
        messages = [(b"socket " + name + b"\n", [descriptor]) for name, descriptor in self._sockets]
        messages.append((f"restarts {self._restarts} {self._reason}\ngo\n".encode(), []))
        return [*messages, (b"stop\n", [])] if self._stops else messages

    def _wait(self, wake: int, start_at: float) -> None:
        """Wait for a signal, a message, or the time to start; carry out signals and messages."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        door = self._door
        if door is not None and door.line is not None:
            poll.register(door.line, select.POLLIN)
        lives = door is not None and door.pid
        timeout_ms = None if lives else 1 + 1000 * max(0.0, start_at - time.monotonic())
        for descriptor, _ in poll.poll(timeout_ms):
            if descriptor != wake:
                assert door is not None, "only its line is polled"
                self._listen(door)
                continue
            for number in os.read(wake, 64):
                if number != signal.SIGCHLD:
                    self._asked_to_stop(number)

    def _asked_to_stop(self, number: int) -> None:
        """Ask the front door to stop, and to hurry if it was asked before.

        The signal may have reached the front door too, as Ctrl-C in a terminal does, so a word
        tells it from a second one. A second one is passed on for a front door that cannot listen.
        """
        self._stops += 1
        if self._door is None:
            return
        self._door.say(b"stop\n" if self._stops == 1 else b"hurry\n")
        if self._door.pid and self._stops > 1:
            os.kill(self._door.pid, number)

    def _listen(self, door: FrontDoor) -> None:
        """Hear what the front door says, and take the sockets that it hands over."""
        self._sockets += door.listen()
        if door.ends:
            # From now on clients shall be refused, not wait.
            for _, descriptor in self._sockets:
                os.close(descriptor)
            self._sockets = []

    def _is_final(self, door: FrontDoor, code: int) -> bool:
        """Whether the front door ended in order, so that no other one is started."""
        if door.ends or code in (0, INTERRUPTED) or -code in ORDERLY_SIGNALS:
            return True
        if self._stops:
            # It crashed before it began to end. The next one ends its workers and jobs in order.
            was_next, self._next_stops = self._next_stops, True
            return was_next
        # A refused *first* start is a user's mistake. Later the same words have worked.
        return code == REFUSED and not self._restarts

    def _crashed(self, door: FrontDoor, code: int) -> float | None:
        """Note a crash; return the delay before the next start, or None to give up."""
        now = time.monotonic()
        self._crashed_at = [at for at in self._crashed_at if now - at < WITHIN_S] + [now]
        self._crashes_in_a_row = 1 if door.serves else self._crashes_in_a_row + 1
        self._reason = _reason(code) + (f": {door.error}" if door.error else "")
        often = len(self._crashed_at)
        if often >= MOST_CRASHES or self._crashes_in_a_row >= MOST_CRASHES:
            _say(
                f"error: the front door crashed {max(often, self._crashes_in_a_row)} times in a "
                f"row and is not started again; the last time it {self._reason}"
            )
            return None
        self._restarts += 1
        _say(f"the front door {self._reason}; it is started again (restart {self._restarts})")
        return 0.0 if often == 1 else FIRST_DELAY_S * 2.0 ** (often - 2)


def _signals() -> int:
    """Return a descriptor on which the numbers of signals arrive."""
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    numbers = [signal.SIGCHLD, signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda number, frame: None)
    return read_end


def _reason(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed by signal {-code}"


def _status(code: int) -> int:
    """Return the exit status that a shell shows for a process that ended so."""
    return code if code >= 0 else 128 - code


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk or a reader that has gone ends no farm
        print(time.strftime("%F %T"), f"farm: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(Keeper(sys.argv[1:]).run())
