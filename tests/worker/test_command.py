"""Programs behind a template: filled in, run in a scratch folder, read, killed with children."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest

from farm.call import Call, Operation, Result
from farm.errors import FarmError, InvalidInput, ModelFailed, TimeLimitExceeded
from farm.machine.private import LOCK
from farm.model import Inputs
from farm.worker.command import CommandModel
from farm.worker.readers import column, json_value, regex
from farm.worker.runner import Outcome, Runner
from tests.support.coroutines import wait_until

# A simulator of the old school: reads "E = ..." from a file, writes "sum = ..." to another.
SIMULATOR = """#!{python}
import sys
text = open(sys.argv[1]).read()
numbers = [float(w) for w in text.split("=")[1].split()]
open(sys.argv[2], "w").write("sum = %r\\n" % sum(numbers))
"""


@pytest.fixture(autouse=True)
def simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sim"
    path.write_text(SIMULATOR.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.chdir(tmp_path)
    return path


def model(command: Any = "./sim {input} {output}", **changes: Any) -> CommandModel:
    arguments: dict[str, Any] = {
        "template": "E = ${E}\n",
        "inputs": {"E": 3},
        "outputs": {"y": 1},
        "read": {"y": regex(r"sum = (\S+)")},
        "scratch": "scratch",
    }
    return CommandModel(command, **(arguments | changes))


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs `code`; its braces are doubled, as in any command."""
    return [sys.executable, "-c", code.replace("{", "{{").replace("}", "}}"), *arguments]


def outcome(model: CommandModel, *inputs: Any, config: str = "{}") -> Outcome:
    arrays = tuple(np.asarray(x, dtype=float) for x in inputs or ([0.1, 0.2, 0.3],))
    return Runner({"m": model}).execute([Call("m", Operation.EVALUATE, arrays, config=config)])[0]


def outputs(model: CommandModel, *inputs: Any, config: str = "{}") -> list[float]:
    found = outcome(model, *inputs, config=config)
    if isinstance(found, FarmError):
        raise found
    assert isinstance(found, Result)
    return [float(x) for x in found.outputs[0].ravel()]


E = TypeVar("E", bound=FarmError)


def failure(kind: type[E], model: CommandModel, config: str = "{}") -> E:
    """The error of this kind that a run ends with."""
    found = outcome(model, config=config)
    assert isinstance(found, kind)
    return found


def kept() -> list[Path]:
    return sorted(Path("scratch").iterdir())


# --- rendering and reading --------------------------------------------------------------------


def test_a_simulator_that_reads_and_writes_files() -> None:
    assert outputs(model()) == [0.1 + 0.2 + 0.3]
    assert kept() == []


def test_no_digit_is_lost_on_the_way() -> None:
    x = [1 / 3, 2.0**-1074, 1.7976931348623157e308]
    echo = python("print(open('input.txt').read())")
    read = regex(r"[-+.\de]*\d")
    assert outputs(model(echo, template="${E}", read=read, outputs={"y": 3}), x) == x


def test_placeholders_of_templates() -> None:
    template = (
        '{"all": "${A}", "one": "${A[1][0]:.2e}", "last": ${x[-1]}, "n": ${config[n]}} $${x} $x'
    )
    cat = model(
        python("print(open('case.inp').read())"),
        inputs={"A": (2, 2), "x": 2},
        template=template,
        input_file="case.inp",
        read=regex("(.)"),
        config={"n": 7},
        keep="always",
    )
    outcome(cat, [1, 2, 3, 4], [0.5, -0.25])
    outcome(cat, [1, 2, 3, 4], [0.5, -0.25], config='{"n":8}')
    texts = sorted((folder / "case.inp").read_text() for folder in kept())
    expected = '{"all": "1.0 2.0 3.0 4.0", "one": "3.00e+00", "last": -0.25, "n": %d} ${x} $x'
    assert texts == [expected % 7, expected % 8]


def test_placeholders_of_commands_are_one_argument_each_whatever_they_hold() -> None:
    code = "import sys, json; print(json.dumps([len(sys.argv), sys.argv[1:]]))"
    show = model(
        python(code, "-e", "{E}", "{E[0]:.1f}", "{config[title]}", "{here}", "{{}}"),
        template=None,
        read=lambda path: [json_value(0)(path)] if check(json_value(1)(path)) else None,
    )

    def check(arguments: list[str]) -> bool:
        title = "a 'b' $HOME; rm -rf *"
        here = str(Path.cwd())
        assert arguments == ["-e", "1.0 2.0 3.0", "1.0", title, here, "{}"]
        return True

    assert outputs(show, [1, 2, 3], config='{"title":"a \'b\' $HOME; rm -rf *"}') == [7]


def test_the_standard_output_is_the_output_file_when_none_is_named() -> None:
    read = column("y")
    table = python("print('# x y'); print('1 2'); print('3 4')")
    assert outputs(model(table, read={"y": read}, outputs={"y": 2})) == [2, 4]


def test_template_and_files_from_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "deck.inp").write_text("E = ${E}")
    (folder / "mesh.dat").write_text("5")
    program = python(
        "import sys; mesh = float(open('mesh.dat').read());"
        "print('sum =', mesh + len(open('deck.inp').read().split()))"
    )
    from_folder = model(
        program,
        template=Path("deck.inp"),
        input_file="deck.inp",
        files=["mesh.dat"],
        directory=folder,
    )
    assert outputs(from_folder) == [10]


def test_a_reader_may_give_all_outputs() -> None:
    two = model(
        python('print(\'{"a": [1, 2], "b": 3}\')'),
        outputs={"a": 2, "b": 1},
        read=json_value(),
    )
    found = outcome(two)
    assert isinstance(found, Result)
    assert [o.tolist() for o in found.outputs] == [[1, 2], [3]]


def test_environment_is_added() -> None:
    program = python("import os; print('sum =', os.environ['N_OF_IT'], len(os.environ['PATH']))")
    assert outputs(model(program, environment={"N_OF_IT": "4"})) == [4]


# --- failures ---------------------------------------------------------------------------------


def test_an_exit_code_shows_the_end_of_stderr_and_keeps_the_folder() -> None:
    code = "import sys; sys.stderr.write('iteration 1\\n' * 100 + 'no convergence\\n'); sys.exit(3)"
    found = failure(ModelFailed, model(python(code)))
    assert "exited with code 3: no convergence" in found.message
    (folder,) = kept()
    assert found.message.endswith(f"(files kept in {folder.resolve()})")
    assert found.detail.count("\n") == 19
    assert (folder / "input.txt").read_text() == "E = 0.1 0.2 0.3\n"


def test_a_signal_is_named() -> None:
    found = failure(ModelFailed, model(python("import os; os.abort()"), keep="never"))
    assert "was ended by SIGABRT: it wrote nothing" in found.message
    assert kept() == []


def test_no_output_file_and_no_match_are_said() -> None:
    found = failure(ModelFailed, model(python("print('all fine')", "{output}")))
    assert "ended well but wrote no 'output.txt'" in found.message
    assert found.detail == "all fine"
    found = failure(ModelFailed, model(python("print('all fine')")))
    assert "stdout.txt has no match" in found.message


@pytest.mark.parametrize("text", ["a\nsolver = evil", "a\rb", "\0", "\x1b[2J", "a\u2028b", "\x85"])
@pytest.mark.parametrize(
    "changes",
    [{"template": "${config[title]} ${E}"}, {"command": ["./sim", "{config[title]}"]}],
    ids=["template", "command"],
)
def test_a_text_of_a_config_cannot_add_lines_to_what_a_program_reads(
    text: str, changes: dict[str, Any]
) -> None:
    found = failure(InvalidInput, model(**changes), json.dumps({"title": text}))
    assert f"control character {next(c for c in text if c not in 'ab')!r}" in found.message
    nested = model(template="${config[a][b]} ${E}")
    assert failure(InvalidInput, nested, json.dumps({"a": {"b": text}}))


def test_what_the_models_author_wrote_may_have_several_lines() -> None:
    own = model(template="# ${config[title]}\nE = ${E}\n", config={"title": "two\n# lines"})
    assert outputs(own, [1, 2, 3]) == [6.0]
    assert outputs(own, [1, 2, 3], config='{"title": "ä β"}') == [6.0]


def test_a_config_key_that_is_missing_is_named() -> None:
    found = failure(ModelFailed, model(template="${config[mesh]} ${E}"))
    assert "'{config[mesh]}' asks for 'mesh', which the config {} does not have" in found.message
    found = failure(ModelFailed, model(template="${E[3]}"))
    assert "'{E[3]}' cannot be filled in" in found.message


def test_the_program_may_be_named_from_the_directory() -> None:
    assert model("{here}/sim {input} {output}").program.command[0] == str(Path.cwd() / "sim")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"template": "${F}"}, r"'\$\{F\}' names 'F'; known are \['E', 'config', 'here'\]"),
        ({"template": "${E[0}"}, "cannot be filled in"),
        ({"command": "./sim {ouput}"}, "names 'ouput'"),
        ({"command": "./simm {input}"}, "there is no program '.*/simm'"),
        ({"command": "no-such-program-here"}, "there is no program 'no-such-program-here'"),
        ({"command": ""}, "the command is empty"),
        ({"files": ["mesh"]}, "there is no '.*/mesh'"),
        ({"read": {"z": regex("z")}}, r"read has \['z'\], expected .* \['y'\]"),
        ({"inputs": {"config": 1}}, "an input is called 'config'"),
        ({"keep": "sometimes"}, "keep is 'sometimes'"),
    ],
)
def test_what_no_run_could_put_right_is_refused_at_once(
    changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        model(**changes)


# --- processes --------------------------------------------------------------------------------


def processes_of(folder: Path) -> list[int]:
    """Return the processes whose working folder is below `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and folder in Path(process.cwd()).parents:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_for_processes(folder: Path, count: int) -> None:
    wait_until(lambda: len(processes_of(folder)) == count)


def pipes_of(pid: int) -> Counter[str]:
    """Return how many descriptors a process has of each pipe."""
    found: Counter[str] = Counter()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[os.readlink(each)] += 1
    return Counter({target: n for target, n in found.items() if target.startswith("pipe:")})


def is_tied(worker: int, program: int) -> bool:
    """Whether the program runs, and its worker has closed its copy of the lifeline's end."""
    kept, left = pipes_of(program), pipes_of(worker)
    return kept.total() == 1 and all(left[lifeline] == 1 for lifeline in kept)


SPAWNING = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']);"
    "print('sum = 1', flush=True);"
)


def test_a_time_out_kills_the_program_and_what_it_started(tmp_path: Path) -> None:
    slow = model(python(SPAWNING + "time.sleep(1000)"), timeout_s=1)
    found = failure(TimeLimitExceeded, slow)
    assert "ran longer than 1 s and was killed (files kept in" in found.message
    wait_for_processes(tmp_path / "scratch", 0)


def test_what_a_program_leaves_running_is_killed_when_it_ends(tmp_path: Path) -> None:
    assert outputs(model(python(SPAWNING), timeout_s=60)) == [1]
    wait_for_processes(tmp_path / "scratch", 0)


def test_a_time_out_costs_a_short_program_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Popen.wait(timeout)` sleeps between its looks."""

    def slept(seconds: float) -> None:
        raise AssertionError(f"it slept for {seconds} s")

    monkeypatch.setattr(time, "sleep", slept)
    outputs(model("true", template=None, read=lambda path: [1.0], timeout_s=60))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_the_program_dies_with_its_worker(tmp_path: Path) -> None:
    worker = f"""
import numpy as np
from farm.model import Inputs
from farm.machine.private import LOCK
from farm.worker.command import CommandModel
model = CommandModel({python("import time; time.sleep(100)")!r}, inputs={{"x": 1}},
    outputs={{"y": 1}}, read=print, scratch={str(tmp_path / "scratch")!r})
model.evaluate(Inputs(x=np.zeros(1)), {{}})
"""
    with subprocess.Popen([sys.executable, "-c", worker], cwd=Path(__file__).parents[2]) as process:
        wait_for_processes(tmp_path / "scratch", 1)
        (program,) = processes_of(tmp_path / "scratch")
        wait_until(lambda: is_tied(process.pid, program))
        process.kill()
    wait_for_processes(tmp_path / "scratch", 0)


def test_no_descriptor_is_left() -> None:
    outputs(model())
    before = len(os.listdir("/proc/self/fd"))
    outputs(model())
    outcome(model(python("1/0"), timeout_s=5))
    assert len(os.listdir("/proc/self/fd")) == before


def test_keys_of_the_config_are_those_that_the_texts_and_defaults_name() -> None:
    assert model().config_keys == set()
    known = model("./sim {input} {output} {config[mode]}", config={"nodes": 200})
    assert known.config_keys == {"mode", "nodes"}
    assert model(template="E = ${E} ${config[tol]:.3e}").config_keys == {"tol"}
    assert model("./sim {input} {output} {config}").config_keys is None
    found = failure(InvalidInput, known, '{"nodez":1}')
    assert "its keys are: mode, nodes" in found.message


@pytest.mark.parametrize(("keep", "locked"), [("always", False), ("failed", True)])
def test_the_folder_of_a_killed_run_is_for_removal_unless_all_are_kept(
    keep: str, locked: bool
) -> None:
    code = f"import os; print('sum =', float(os.path.exists({LOCK!r})))"
    listing = model(python(code), template=None, keep=keep)
    assert listing.evaluate(Inputs(E=np.ones(3)), {})["y"] == locked
