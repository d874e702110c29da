"""The output of Grid Engine's commands: which of it counts, and what it says about jobs.

Recorded from Grid Engine 8.1.9; its manual pages have the rest.
"""

from __future__ import annotations

import contextlib
import re
from xml.etree import ElementTree

from farm.provision.batch.commands import quoted
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand

REASON_LENGTH = 200
"""Most characters of a reason: a scheduler that explains itself names each queue."""

_DOCUMENT = re.compile(r"<\?xml[^>]*\?>\s*<(\w+).*</\1\s*>", re.DOTALL)
_ROW = re.compile(r"<job_list\b.*?</job_list>", re.DOTALL)
_UNKNOWN = r"<unknown_jobs\b.*<ST_name>\s*{}\s*</ST_name>"
_STATE = re.compile(r"[dEhqRrsSTtwz]+")
"""States are words of these letters; source: sge_status(5)."""

_ID = re.compile(r"\s*([1-9]\d*)\s*", re.ASCII)
ID = re.compile(r"(?:.*Your job )?([1-9]\d*)(?: \(.*\) has been submitted.*)?", re.ASCII)
SUBMITTED = re.compile(r"Your job ([1-9]\d*) \(.*\) has been submitted", re.ASCII)
"""The line of qsub's output with the job's id, among a site's banners; the same in an error."""

_ON_NODES = 0x80 | 0x200  # JRUNNING, JTRANSFERING
_LEAVING = 0x1000 | 0x10000  # JEXITING, JFINISHED
"""Bits of JAT_status; source: sge_job.h of Grid Engine 8.1.9, qstat -xml."""

_HELD = frozenset({"33", "35"})
"""Numbers of the scheduler's messages about jobs that are held, or wait for another job."""

_RESTARTED = frozenset({24, 25})
_AFTER_JOB = frozenset({0, 12, 13, 14, 15, 16})
_KILLED = frozenset({37, 100})
"""Values of `failed` in an account; source: sge_status(5). Restarted: the job lives on. After job:
its program ran to its end. Killed: by a signal, as of a limit. With others it did not start."""

_CRASHES = frozenset({128 + number for number in (4, 6, 7, 8, 11, 31)})
"""Exit codes after the signals of a faulty program: ILL, ABRT, BUS, FPE, SEGV and SYS."""


def _document(text: str) -> ElementTree.Element:
    """Return the XML document of qstat, with or without banners around it. Raises BatchError."""
    found = _DOCUMENT.search(text)
    if found is None:
        raise BatchError(f"qstat printed no whole document, but {quoted(text)}")
    try:
        root = ElementTree.fromstring(found[0])
    except ElementTree.ParseError as error:
        raise BatchError(f"qstat printed a damaged document: {error}") from None
    if root.tag not in ("job_info", "detailed_job_info", "unknown_jobs"):
        # Such as comunication_error, which is how it is spelled.
        raise BatchError(f"qstat: {root.findtext('AN_text') or quoted(text)}")
    return root


def parse_jobs(text: str) -> Listing:
    """Return the rows of `qstat -xml`, and whether its answer is whole."""
    rows = []
    problem = ""
    listed = 0
    try:
        root = _document(text)
    except BatchError as error:
        problem = str(error)
    else:
        listed = len(root.findall(".//job_list"))
        if root.tag != "job_info" or root.find("queue_info") is None:
            problem = f"qstat printed no list of jobs, but {quoted(text)}"
    for found in _ROW.findall(text):
        with contextlib.suppress(ElementTree.ParseError):
            row = _row(ElementTree.fromstring(found))
            rows += [] if row is None else [row]
    if not problem and len(rows) < listed:
        problem = f"qstat printed {listed - len(rows)} damaged rows"
    return Listing(tuple(rows), problem)


def _row(element: ElementTree.Element) -> JobRow | None:
    """Return one row of the list of jobs; None if it is damaged."""
    job_id, state = element.findtext("JB_job_number", ""), element.findtext("state", "")
    name = element.findtext("JB_name")
    if name is None or not _ID.fullmatch(job_id) or not _STATE.fullmatch(state):
        return None
    queue = element.findtext("queue_name") or ""
    stand, reason = Stand.RUNNING, ""
    if "z" in state:
        stand = Stand.ENDED
    elif "q" in state:
        stand = Stand.PENDING
    elif "d" in state:
        stand = Stand.COMPLETING
    elif set(state) & set("sST"):
        reason = "suspended"
    return JobRow(
        job_id,
        stand,
        state,
        name,
        nodes=queue.partition("@")[2],
        reason=reason,
        needs_action=bool(reason) or (stand is Stand.PENDING and _needs_action(state)),
    )


def _needs_action(state: str) -> bool:
    """Whether a pending job waits for people: in error, or held."""
    return "E" in state or "h" in state


class UnknownJob(BatchError):
    """The batch system says that it knows no such job."""


def parse_described(job_id: str, text: str, user: str) -> JobRow | None:
    """Return the job in the output of `qstat -xml -j`; None if another user has its id.

    Raises BatchError if the job is not there.
    """
    if re.search(_UNKNOWN.format(job_id), text, re.DOTALL):
        raise UnknownJob(f"job {job_id} is unknown")  # some versions print bad XML
    root = _document(text)
    for element in root.findall("djob_info/element"):
        name = element.findtext("JB_job_name")
        if element.findtext("JB_job_number") == job_id and name is not None:
            is_own = element.findtext("JB_owner") == user
            return _described(job_id, name, element, root) if is_own else None
    raise BatchError(f"qstat did not describe job {job_id}, but printed {quoted(text)}")


def _described(
    job_id: str, name: str, element: ElementTree.Element, root: ElementTree.Element
) -> JobRow:
    bits = 0
    for status in element.iter("JAT_status"):
        bits |= int(status.text or "") if (status.text or "").isdecimal() else 0
    if bits & _LEAVING:
        return JobRow(job_id, Stand.COMPLETING, "exiting", name)
    if bits & _ON_NODES:
        return JobRow(job_id, Stand.RUNNING, "r" if bits & 0x80 else "t", name)
    numbers, reason = _why_pending(job_id, element, root)
    state = "Eqw" if element.find(".//QIM_message") is not None else "qw"
    if state == "qw" and numbers & _HELD:
        state = "hqw"
    action = _needs_action(state)
    return JobRow(job_id, Stand.PENDING, state, name, reason=reason, needs_action=action)


def _why_pending(
    job_id: str, element: ElementTree.Element, root: ElementTree.Element
) -> tuple[set[str], str]:
    """Return the numbers of the scheduler's messages about this job, and why it waits.

    An error of the job comes first. Messages about all jobs are left out: such as full queues.
    """
    errors = [message.text or "" for message in element.iter("QIM_message")]
    numbers, said = set(), []
    for message in root.findall("messages/element/SME_message_list/element"):
        if job_id in (number.text for number in message.iter("ULNG_value")):
            numbers.add(message.findtext("MES_message_number", ""))
            said.append(message.findtext("MES_message", ""))
    # Errors begin with the date, and with numbers of the process.
    texts = [re.sub(r"^[\d/: ]+(?:\[[\d:]+\]: )?(?:error: )?", "", text) for text in errors] or said
    reason = "; ".join(dict.fromkeys(filter(None, texts)))
    return numbers, reason if len(reason) <= REASON_LENGTH else f"{reason[:REASON_LENGTH]}..."


def parse_reasons(text: str) -> dict[str, str]:
    """Return why jobs wait, by their ids, from the output of `qstat -xml -j`."""
    root = _document(text)
    found = {}
    for element in root.findall("djob_info/element"):
        job_id = element.findtext("JB_job_number") or ""
        found[job_id] = _why_pending(job_id, element, root)[1]
    return found


def parse_accounted(job_id: str, text: str, user: str) -> JobRow | None:
    """Return the job in the output of `qacct -j` if it has ended; None otherwise.

    Of several records the last one counts: before it are those of the parts on other nodes, of
    earlier starts, and of an older job with the same number.
    """
    last: dict[str, str] = {}
    for record in re.split(r"^=+$", text, flags=re.MULTILINE):
        fields = dict(re.findall(r"^(\w+)[ \t]+(.*?)[ \t]*$", record, re.MULTILINE))
        if fields.get("jobnumber") == job_id and fields.get("owner") == user:
            last = fields
    failed = re.match(r"(\d+)(?:\s*:\s*(.+))?", last.get("failed", ""))
    exited = re.match(r"(\d+)(?:\s+\((.+)\))?", last.get("exit_status", ""))
    if failed is None or exited is None or int(failed[1]) in _RESTARTED:
        return None
    code, status = int(failed[1]), int(exited[1])
    words = [f"failed {code}: {failed[2] or 'unknown'}"] * bool(code)
    words.append(f"exit status {status}" + (f" ({exited[2]})" if exited[2] else ""))
    crashed = status in _CRASHES if code in _KILLED else bool(status) or code not in _AFTER_JOB
    name = last.get("jobname", "")
    return JobRow(job_id, Stand.ENDED, "ended", name, reason="; ".join(words), crashed=crashed)
