import errno
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough import cli
from bough.commands import table
from bough.config.base import leaves
from bough.errors import BoughError, InputError
from bough.files import follows_links

DATA = str(Path(__file__).parents[1] / "examples" / "household.jsonl")


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], int]], None]:
    """Replaces what a command does."""
    return lambda work: monkeypatch.setattr(cli, "_dispatch", work)


def failing(error: BaseException) -> Callable[[list[str]], int]:
    def fail(arguments: list[str]) -> int:
        raise error

    return fail


@pytest.mark.parametrize("name", list(table.TABLE))
def test_every_verb_explains_itself_without_python_types(name: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: bough {name}")
    flags = re.findall(r"^  (?:-\w, )?--[\w-]+(?: ([^ ,\n]+))?", shown, re.MULTILINE)
    assert {word for word in flags if word and word[0] != "{"} <= {"INT", "FLOAT", "TEXT", "PATH", "FILE", "KEY=VALUE"}


def test_help_loads_nothing_heavy():
    """What makes help slow are these imports; seconds would depend on the machine."""
    code = f"""
import sys
from bough.cli import main
for name in {["", *table.TABLE]!r}:
    main([*name.split(), "--help"])
    heavy = {{"torch", "transformers", "pyarrow", "datasets", "peft", "starlette"}} & set(sys.modules)
    if heavy:
        sys.exit(f"bough {{name}} --help loads {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert all(f"usage: bough {name}" in done.stdout for name in table.TABLE)


def test_commands_without_a_model_load_none_of_its_libraries():
    commands = [["data", "formats"], ["env", "list"], ["data", "show", DATA], ["data", "stats", DATA]]
    code = f"""
import sys
from bough.cli import main
for words in {commands!r}:
    done = main(words)
    heavy = {{"torch", "transformers", "tokenizers", "peft", "accelerate"}} & set(sys.modules)
    if done or heavy:
        sys.exit(f"bough {{words}} ends with {{done}} and loads {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_bare_call_lists_the_commands(capsys: pytest.CaptureFixture[str]):
    assert cli.main([]) == 0
    assert "data convert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dta"], "bough dta is not a command; did you mean data?"),
        (["data", "shw"], "bough data shw is not a command; did you mean show?"),
        (["data"], "bough data needs one of the commands above"),
        (["--verbose"], "bough needs a command before --verbose"),
        (["data", "show"], "FILE is required"),
        (["data", "show", "none.jsonl"], "none.jsonl: there is no such file or folder"),
        (["data", "show", "a", "--indx", "2"], "--indx is not a setting; did you mean --index?"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_debug_may_stand_before_the_command_and_raises_the_error():
    with pytest.raises(InputError, match=r"none\.jsonl: there is no such file or folder"):
        cli.main(["--debug", "data", "show", "none.jsonl"])


NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (BoughError("the work failed"), 1, "Error: the work failed\n"),
        (RuntimeError("a defect"), 1, "Error: unexpected RuntimeError: a defect\nThis is a bug in Bough"),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (OSError(errno.ENOSPC, NO_SPACE, "runs/a.jsonl"), 1, f"Error: runs/a.jsonl: {NO_SPACE}\n"),
        (OSError(errno.ENOSPC, NO_SPACE), 1, f"Error: {NO_SPACE}; --debug shows where\n"),
        # A quoted text cannot control the terminal.
        (
            BoughError("it said\n\x1b]52;c;cm0gLXJm\x07\x9b2J\tno"),
            1,
            "Error: it said\n\\x1b]52;c;cm0gLXJm\\x07\\x9b2J\tno\n",
        ),
    ],
)
def test_an_error_is_a_sentence_and_its_exit_code_says_whose_fault_it_was(
    error: BaseException, code: int, said: str, dispatched: Any, capsys: pytest.CaptureFixture[str]
):
    dispatched(failing(error))
    assert cli.main([]) == code
    assert capsys.readouterr().err.startswith(said)
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            cli.main(["--debug"])


@pytest.mark.parametrize("words", [["--help"], ["sft", "--help"], ["data", "formats"], ["env", "list"], ["dta"]])
def test_a_terminal_without_our_characters_is_no_reason_to_fail(words: list[str], monkeypatch: pytest.MonkeyPatch):
    said = io.BytesIO()
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):  # as Python opens them
        monkeypatch.setattr(sys, name, io.TextIOWrapper(said, "ascii", errors, write_through=True))
    assert cli.main(words) == (2 if words == ["dta"] else 0)
    shown = said.getvalue().decode("ascii")
    assert shown and "bug in Bough" not in shown


def test_a_name_that_is_not_utf_8_is_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    name = os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")
    Path(name).write_text("{}\n")
    assert cli.main(["data", "stats", name]) == 2
    assert "\\udcff.jsonl' is not UTF-8" in capfd.readouterr().err
    assert cli.main(["data", "stats", str(tmp_path)]) == 2
    assert "'\\udcff.jsonl' is not UTF-8; rename the file" in capfd.readouterr().err


def test_another_interrupt_while_python_exits_prints_no_traceback():
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['bough', 'data', 'formats']\n"
        "from bough.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_is_answered_as_an_interrupt(ctrl_c: Any, dispatched: Any, capsys: pytest.CaptureFixture[str]):
    """With SIGINT ignored, too, as in a shell's background jobs."""
    cleaned_up: list[bool] = []

    def work(*_: object) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned_up.append(True)
        return 0

    dispatched(work)
    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        assert cli.main(["collect"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "Interrupted. The same command resumes.\n" and cleaned_up
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_process_ends_by_sigterm_as_ever(dispatched: Any):
    def fork(*_: object) -> int:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        return os.WTERMSIG(os.waitpid(child, 0)[1])

    dispatched(fork)
    assert cli.main([]) == signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval"], "Interrupted. The same command resumes.\n"),
        (["grpo", "--max-steps", "3"], "Interrupted. The same command with --resume continues from the newest"),
        (["data", "formats"], "Interrupted.\n"),
        ([], "Interrupted.\n"),
    ],
)
def test_an_interrupt_says_how_to_resume(
    words: list[str], said: str, dispatched: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    dispatched(failing(KeyboardInterrupt()))
    assert cli.main(words) == 130
    assert capsys.readouterr().err.startswith(said)
    monkeypatch.setattr(cli.table, "command", failing(AttributeError("a module whose import was interrupted")))
    assert cli.main(words) == 130


def test_commands_that_resume_if_asked_have_the_flag():
    asked = {name for name, stage in table.stages().items() if stage.resumes}
    assert asked == {name for name in table.TABLE if "resume" in leaves(table.command(name).config)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-epochs", "inf"], "--num-epochs is 'inf'; it should be a finite number"),
        (["--num-epochs", "nan"], "--num-epochs is 'nan'; it should be a finite number"),
        (["--learning-rate=-inf"], "--learning-rate is '-inf'"),
        (["--learning-rate", "-1"], "--learning-rate is '-1'; it should be greater than 0"),
        (["--seed", str(10**30)], "it must be at most 9223372036854775807"),
        (["--seed", "1" * 5000], "--seed is"),
        (["--seed", "-1"], "--seed is '-1'; it should be greater than or equal to 0"),
        (["--batch-size", str(10**30)], "it must be at most 9223372036854775807"),
    ],
)
def test_numbers_beyond_all_use_are_a_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["sft", "--train-file", "a.jsonl", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_closed_pipe_is_no_error():
    sample = Path(__file__).parents[1] / "examples" / "household.jsonl"
    command = f"{sys.executable} -m bough data show {sample} --count 5 | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bough 0.")


def test_links_are_followed_for_the_command_that_asks_for_it(dispatched: Any):
    seen: list[tuple[list[str], bool]] = []
    dispatched(lambda words: seen.append((words, follows_links())) or 0)
    for words in (["collect", "--follow-links"], ["--follow-links", "collect"], ["collect"]):
        assert cli.main(words) == 0
    assert seen == [(["collect"], True), (["collect"], True), (["collect"], False)]
