"""A blocking call that its own thread sends and receives, while nothing else happens on the line.

The client's thread serves a line in general. For a caller that makes one call after another it is a
detour: two threads of one program wake each other for every message. So the client's thread rests
between the calls of such a caller, and the caller uses the line itself. It does only the usual: it
sends its call, and waits a moment for a message with its result. The client's thread does
everything else, as soon as the caller has left the line.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from farm.call import Buffer, Result
from farm.errors import InvalidRequest
from farm.transports.dial import DialedLine
from farm.transports.lease import Lease, LoneCall
from farm.wire import messages as wire
from farm.wire.messages import Kind

LEAD_MS = 200
"""Time for which a caller waits on the line itself; a hand-over matters only to shorter calls."""


def exchange(
    lone: LoneCall,
    call_id: int,
    frames: list[Buffer],
    line: DialedLine,
    wake_fd: int,
    lease: Lease,
) -> Result | None:
    """Send the call and return its result; None if the client's thread has to go on.

    wake_fd: readable when the client's thread is needed.
    """
    lone.touches_line = True
    line.send(frames)
    sent = line.flush(0.0)
    lone.touches_line = False
    if not sent:
        return None
    poll = select.poll()
    line_fd = line.fileno()
    poll.register(line_fd, select.POLLIN)
    poll.register(wake_fd, select.POLLIN)
    while True:
        ready = poll.poll(LEAD_MS)
        if len(ready) != 1 or ready[0][0] != line_fd:
            return None
        result = None
        lone.touches_line = True
        while lease.held_by() is lone and (message := line.receive()) is not None:
            found = _result(message, call_id)
            if found is None:
                lease.unread.append(message)
            else:
                result = found
        lone.touches_line = False
        if result is not None or lease.unread or lease.held_by() is not lone or line.ended():
            return result


def _result(frames: Sequence[Buffer], call_id: int) -> Result | None:
    """Return the result in a message that contains nothing else."""
    try:
        message = wire.decode(frames)
        if message.kind is not Kind.ANSWERS:
            return None
        answers = wire.decode_answers(message)
    except InvalidRequest:
        return None  # whoever reads it again reports it
    if len(answers) != 1 or answers[0][0] != call_id:
        return None
    outcome = answers[0][1]
    return outcome if isinstance(outcome, Result) else None
