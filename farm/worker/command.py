"""A command-line simulator as a model: fill in its input file, run it, read its output file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from farm.call import Array
from farm.declared import Tensors
from farm.errors import InvalidInput, ModelFailed, TimeLimitExceeded, error_named
from farm.machine.lifeline import Lifeline
from farm.model import Config, Inputs, Model
from farm.worker.runner import named

Reader = Callable[[Path], Any]
"""Returns the numbers of one output, or of all outputs, from the path of the output file."""

CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
PLACEHOLDER = re.compile(r"(\$?)\$\{([^{}]*)\}")
RESERVED = {"config", "here", "input", "output"}
LAST_LINES = 20
LAST_BYTES = 8192


class CommandModel(Model):
    """A model whose evaluation is one run of a program in a fresh scratch folder.

    command: the program and its arguments, as one line that is split as a shell would, or as a
        list; no shell runs it. `{input}` and `{output}` become the paths of the two files,
        `{NAME}` an input's numbers, `{config[KEY]}` a value of the config, `{here}` the directory.
        Without `{output}` the program's standard output is the output file.
    template: text of the input file, or the Path of a file that holds it. `${NAME}` becomes all
        numbers of an input with spaces between, `${NAME[0]}` one of them, `${NAME[0]:.6e}` the
        same in Python's format, `${config[KEY]}` a value of the config; `$${` stays `${`.
        A text of a call's config may hold no control characters: a line break in it would add a
        line to the input file that its author did not write.
    read: output name -> reader (`regex`, `column`, `json_value`, `npy` or a function of the output
        file's path), or one reader that returns all outputs in a form that `Model.evaluate` may
        return.
    files: files the program expects to find beside it; they are linked into the scratch folder.
    directory: base of relative paths; by default the current folder.
    config: values for config keys that a call leaves out.
    timeout_s: seconds after which the program and its children are killed: TimeLimitExceeded.
    keep: which scratch folders are kept; errors name them. They are in `scratch`, else in $TMPDIR.

    If the program's exit code is not 0, the call fails with the last lines of its standard error.
    Its whole process group ends with it, and with the worker.
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        inputs: Tensors,
        outputs: Tensors,
        read: Mapping[str, Reader] | Reader,
        template: str | Path | None = None,
        input_file: str = "input.txt",
        output_file: str = "output.txt",
        files: Sequence[str | Path] = (),
        directory: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        keep: Literal["never", "failed", "always"] = "failed",
        scratch: str | Path | None = None,
        name: str = "",
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.input_file, self.output_file = input_file, output_file
        self.config = dict(config or {})
        self._fill = _Filler(self.config)
        self.environment = {**os.environ, **(environment or {})}
        self.timeout_s = timeout_s
        self.keep = keep
        self.read = read
        self.directory = Path(directory or ".").resolve()
        self.scratch = None if scratch is None else self.directory / scratch
        self.files = [(self.directory / file).resolve() for file in files]
        self.command = shlex.split(command) if isinstance(command, str) else list(command)
        if isinstance(template, Path):
            template = (self.directory / template).read_text()
        self.template = template
        self._check()
        self.command[0] = self._program(self.command[0])
        self.name = name or Path(self.command[0]).stem

    def _check(self) -> None:
        """Raise ValueError for arguments with which every run would fail."""
        taken = RESERVED & set(self.inputs)
        if taken:
            raise ValueError(f"an input is called {min(taken)!r}, which placeholders use already")
        if not self.command:
            raise ValueError("the command is empty")
        known = RESERVED | set(self.inputs)
        for part in self.command:
            _check_names(part, part, known)
        for match in PLACEHOLDER.finditer(self.template or ""):
            if not match[1]:
                _check_names("{" + match[2] + "}", match[0], known - {"input", "output"})
        if isinstance(self.read, Mapping) and set(self.read) != set(self.outputs):
            raise ValueError(
                f"read has {sorted(self.read)}, expected a reader for each of the outputs "
                f"{sorted(self.outputs)}"
            )
        for file in self.files:
            if not file.exists():
                raise ValueError(f"there is no {str(file)!r}, which `files` names")
        if self.keep not in ("never", "failed", "always"):
            raise ValueError(f"keep is {self.keep!r}, expected 'never', 'failed' or 'always'")

    def _program(self, word: str) -> str:
        word = word.replace("{here}", str(self.directory))
        program = str(self.directory / word) if "/" in word else word
        found = shutil.which(program, path=self.environment.get("PATH"))
        if found is None:
            raise ValueError(f"there is no program {program!r} that can be run")
        return found

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Run the program once. Raises ModelFailed, TimeLimitExceeded."""
        if self.scratch is not None:
            self.scratch.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{Path(self.name).name}-", dir=self.scratch))
        keep = self.keep == "always"
        try:
            return self._evaluate(inputs, {**self.config, **config}, scratch)
        except Exception as error:
            failure = named(error)
            if self.keep == "never":
                raise failure from None
            keep = True
            message = f"{failure.message} (files kept in {scratch})"
            raise error_named(type(failure).__name__, message, failure.detail) from None
        finally:
            if not keep:
                shutil.rmtree(scratch, ignore_errors=True)

    def _evaluate(self, inputs: Inputs, config: Config, scratch: Path) -> Any:
        writes_file = any("{output}" in part for part in self.command)
        output = scratch / (self.output_file if writes_file else "stdout.txt")
        values: dict[str, Any] = {name: Numbers(array) for name, array in inputs.items()}
        values["config"] = config
        values["here"] = self.directory
        for file in self.files:
            (scratch / file.name).symlink_to(file)
        if self.template is not None:
            (scratch / self.input_file).write_text(self._fill.template(self.template, values))
        values["input"], values["output"] = scratch / self.input_file, output
        self._run([self._fill.text(part, values) for part in self.command], scratch)
        if not output.exists():
            raise ModelFailed(
                f"{self.command[0]} ended well but wrote no {output.name!r}",
                detail=_end_of(scratch / "stderr.txt") or _end_of(scratch / "stdout.txt"),
            )
        if isinstance(self.read, Mapping):
            return {name: reader(output) for name, reader in self.read.items()}
        return self.read(output)

    def _run(self, argv: Sequence[str], scratch: Path) -> None:
        with (scratch / "stdout.txt").open("wb") as out, (scratch / "stderr.txt").open("wb") as err:
            late = threading.Event()
            with _running(argv, scratch, self.environment, out, err) as process:
                code = _ended(process, self.timeout_s, late)
        if late.is_set():
            raise TimeLimitExceeded(
                f"{argv[0]} ran longer than {self.timeout_s:g} s and was killed",
                detail=_end_of(scratch / "stderr.txt"),
            )
        if code != 0:
            ending = f"exited with code {code}" if code > 0 else f"was ended by {_signal(-code)}"
            end = _end_of(scratch / "stderr.txt") or _end_of(scratch / "stdout.txt")
            last = end.splitlines()[-1].strip() if end else "it wrote nothing"
            raise ModelFailed(f"{argv[0]} {ending}: {last}", detail=end)


@contextlib.contextmanager
def _running(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str], out: Any, err: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program; on leaving the context, kill its whole process group."""
    lifeline = Lifeline()
    try:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            process_group=0,
            pass_fds=(lifeline.read_end,),
        )
        try:
            lifeline.tie(process.pid)
            yield process
        finally:
            # Before waiting for it: until then no other process can have its id.
            _kill_group(process.pid)
            process.wait()
    finally:
        lifeline.cut()


def _ended(process: subprocess.Popen[bytes], timeout_s: float | None, late: threading.Event) -> int:
    """Return the exit code, or minus the signal that ended it; set `late` if we killed it."""

    def kill() -> None:
        late.set()
        _kill_group(process.pid)

    # `Popen.wait(timeout)` polls, which costs a short program up to 50 ms.
    timer = None if timeout_s is None else threading.Timer(timeout_s, kill)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        # WNOWAIT: keep the process id reserved until the timer can no longer fire.
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
    assert ended is not None
    if ended.si_code == os.CLD_EXITED:
        late.clear()  # it ended by itself as the timer fired
        return ended.si_status
    return -ended.si_status


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.rstrip().splitlines()[-LAST_LINES:])


# --- placeholders -----------------------------------------------------------------------------


class Numbers:
    """Formats an input as text: every digit of every number, separated by spaces."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __getitem__(self, index: int | str) -> Numbers:
        return Numbers(self.values[int(index)])  # in a format, -1 is text

    def __format__(self, spec: str) -> str:
        return " ".join(format(value, spec) for value in self.values.ravel().tolist())


def _check_names(text: str, shown: str, known: set[str]) -> None:
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    except ValueError as error:
        raise ValueError(f"{shown!r} cannot be filled in: {error}") from None
    for field in fields:
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if name not in known:
            raise ValueError(f"{shown!r} names {name!r}; known are {sorted(known)}")


class _Filler(string.Formatter):
    """Fills in placeholders. own: values by the model's author, which may hold any characters."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._own = {value for value in own.values() if isinstance(value, str)}

    def template(self, template: str, values: Mapping[str, Any]) -> str:
        """Return a template with its `${...}` filled in. Raises ModelFailed, InvalidInput."""

        def fill(match: re.Match[str]) -> str:
            return match[0][1:] if match[1] else self.text("{" + match[2] + "}", values)

        return PLACEHOLDER.sub(fill, template)

    def text(self, text: str, values: Mapping[str, Any]) -> str:
        """Return a text with its `{...}` filled in. Raises ModelFailed, InvalidInput."""
        try:
            return self.vformat(text, (), values)
        except KeyError as error:
            raise ModelFailed(
                f"{text!r} asks for {error}, which the config {values['config']} does not have"
            ) from None
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            raise ModelFailed(f"{text!r} cannot be filled in: {error}") from None

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str) and value not in self._own and (found := CONTROL.search(value)):
            raise InvalidInput(
                f"a text of the config holds the control character {found[0]!r}, which may not "
                "be filled into a simulator's input"
            )
        return format(value, format_spec)
