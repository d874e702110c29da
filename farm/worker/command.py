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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from farm.call import Array
from farm.declared import Tensors
from farm.errors import InvalidInput, ModelFailed, TimeLimitExceeded, error_named
from farm.machine.lifeline import TiedProcess
from farm.machine.private import TemporaryFolder
from farm.machine.programs import tail_of
from farm.model import Config, Inputs, Model
from farm.worker.runner import named

Reader = Callable[[Path], Any]
"""Returns the numbers of one output, or of all outputs, from the path of the output file."""

CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
PLACEHOLDER = re.compile(r"(\$?)\$\{([^{}]*)\}")
KEY = re.compile(r"\{config(?:\[([^\]]*)\])?")
RESERVED = {"config", "here", "input", "output"}
LAST_LINES = 20


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
        self.config = dict(config or {})
        self.read = read
        here = Path(directory or ".").resolve()
        self.input_file, self.output_file = input_file, output_file
        self.files = [(here / file).resolve() for file in files]
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if isinstance(template, Path):
            template = (here / template).read_text()
        self._check(words, template or "")
        self.config_keys = self._keys([*words, template or ""])
        self._fill = _Filler(self.config, here, template)
        self._folders = _Folders(None if scratch is None else here / scratch, keep)
        self.program = _Program(words, here, {**os.environ, **(environment or {})}, timeout_s)
        self.name = name or Path(self.program.command[0]).stem

    def _check(self, command: Sequence[str], template: str) -> None:
        """Raise ValueError for arguments with which every run would fail."""
        taken = RESERVED & set(self.inputs)
        if taken:
            raise ValueError(f"an input is called {min(taken)!r}, which placeholders use already")
        if not command:
            raise ValueError("the command is empty")
        known = RESERVED | set(self.inputs)
        for part in command:
            _check_names(part, part, known)
        for match in PLACEHOLDER.finditer(template):
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

    def _keys(self, texts: Sequence[str]) -> frozenset[str] | None:
        """Return the keys of the config that are used; None if a placeholder takes all of it."""
        used = {key for text in texts for key in KEY.findall(text)}
        return None if "" in used else frozenset(used | set(self.config))

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        """Run the program once. Raises ModelFailed, TimeLimitExceeded."""
        with self._folders.fresh(self.name) as scratch:
            return self._evaluate(inputs, {**self.config, **config}, scratch)

    def _evaluate(self, inputs: Inputs, config: Config, scratch: Path) -> Any:
        command = self.program.command
        writes_file = any("{output}" in part for part in command)
        output = scratch / (self.output_file if writes_file else "stdout.txt")
        values: dict[str, Any] = {name: Numbers(array) for name, array in inputs.items()}
        values["config"] = config
        for file in self.files:
            (scratch / file.name).symlink_to(file)
        if (text := self._fill.template(values)) is not None:
            (scratch / self.input_file).write_text(text)
        values["input"], values["output"] = scratch / self.input_file, output
        self.program.run([self._fill.text(part, values) for part in command], scratch)
        if not output.exists():
            raise ModelFailed(
                f"{command[0]} ended well but wrote no {output.name!r}",
                detail=_end_of(scratch / "stderr.txt") or _end_of(scratch / "stdout.txt"),
            )
        if isinstance(self.read, Mapping):
            return {name: reader(output) for name, reader in self.read.items()}
        return self.read(output)


class _Folders:
    """Makes a fresh scratch folder for each run, in `place`; `keep` says which of them stay."""

    def __init__(self, place: Path | None, keep: str) -> None:
        if keep not in ("never", "failed", "always"):
            raise ValueError(f"keep is {keep!r}, expected 'never', 'failed' or 'always'")
        self._place = place
        self._keep = keep

    @contextlib.contextmanager
    def fresh(self, name: str) -> Iterator[Path]:
        """Yield a folder for a run of the model `name`; the error of a run names it if it stays."""
        if self._place is not None:
            self._place.mkdir(parents=True, exist_ok=True)
        folder = TemporaryFolder(f"{Path(name).name}-", place=self._place)
        keep = self._keep == "always"
        if keep:
            folder.keep()
        try:
            yield folder.path
        except Exception as error:
            failure = named(error)
            if self._keep == "never":
                raise failure from None
            if not keep:
                folder.keep()
                keep = True
            message = f"{failure.message} (files kept in {folder.path})"
            raise error_named(type(failure).__name__, message, failure.detail) from None
        finally:
            if not keep:
                folder.close()


class _Program:
    """The program that a model runs. command: its path and its arguments with placeholders."""

    def __init__(
        self,
        command: list[str],
        here: Path,
        environment: Mapping[str, str],
        timeout_s: float | None,
    ) -> None:
        """here: the base of a relative path. Raises ValueError if there is no such program."""
        word = command[0].replace("{here}", str(here))
        program = str(here / word) if "/" in word else word
        found = shutil.which(program, path=environment.get("PATH"))
        if found is None:
            raise ValueError(f"there is no program {program!r} that can be run")
        self.command = [found, *command[1:]]
        self._environment = environment
        self._timeout_s = timeout_s

    def run(self, argv: Sequence[str], scratch: Path) -> None:
        """Run `argv` in a folder. Raises ModelFailed, TimeLimitExceeded."""
        with (scratch / "stdout.txt").open("wb") as out, (scratch / "stderr.txt").open("wb") as err:
            late = threading.Event()
            process = TiedProcess(
                lambda lifeline: argv,
                cwd=scratch,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            with contextlib.closing(process):  # which ends what it leaves behind
                code = _ended(process, self._timeout_s, late)
        if late.is_set():
            raise TimeLimitExceeded(
                f"{argv[0]} ran longer than {self._timeout_s:g} s and was killed",
                detail=_end_of(scratch / "stderr.txt"),
            )
        if code != 0:
            ending = f"exited with code {code}" if code > 0 else f"was ended by {_signal(-code)}"
            end = _end_of(scratch / "stderr.txt") or _end_of(scratch / "stdout.txt")
            last = end.splitlines()[-1].strip() if end else "it wrote nothing"
            raise ModelFailed(f"{argv[0]} {ending}: {last}", detail=end)


def _ended(process: TiedProcess, timeout_s: float | None, late: threading.Event) -> int:
    """Return the exit code, or minus the signal that ended it; set `late` if we killed it."""

    def kill() -> None:
        late.set()
        process.kill_group()

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


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_of(path: Path) -> str:
    return "\n".join(tail_of(path).rstrip().splitlines()[-LAST_LINES:])


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
    """Fills in placeholders.

    own: values by the model's author, which may hold any characters; here: the value of `{here}`;
    template: of the input file.
    """

    def __init__(self, own: Mapping[str, Any], here: Path, template: str | None) -> None:
        self._own = {value for value in own.values() if isinstance(value, str)}
        self._here = here
        self._template = template

    def template(self, values: Mapping[str, Any]) -> str | None:
        """Return the template with its `${...}` filled in. Raises ModelFailed, InvalidInput."""
        if self._template is None:
            return None

        def fill(match: re.Match[str]) -> str:
            return match[0][1:] if match[1] else self.text("{" + match[2] + "}", values)

        return PLACEHOLDER.sub(fill, self._template)

    def text(self, text: str, values: Mapping[str, Any]) -> str:
        """Return a text with its `{...}` filled in. Raises ModelFailed, InvalidInput."""
        try:
            return self.vformat(text, (), {**values, "here": self._here})
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
