import errno
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough import cli
from bough.commands import table
from bough.config.parts import leaves
from bough.errors import BoughError, InputError
from bough.files import follows_links

DATA = str(Path(__file__).parents[1] / "examples" / "household.jsonl")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bough", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", list(table.TABLE))
def test_every_verb_explains_itself(name: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: bough {name}")


@pytest.mark.parametrize("name", list(table.TABLE))
def test_help_names_kinds_of_values_and_no_python_types(name: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main([*name.split(), "--help"]) == 0
    flags = re.findall(r"^  (?:-\w, )?--[\w-]+(?: ([^ ,\n]+))?", capsys.readouterr().out, re.MULTILINE)
    assert {word for word in flags if word and word[0] != "{"} <= {"INT", "FLOAT", "TEXT", "PATH", "FILE", "KEY=VALUE"}


def test_help_loads_nothing_heavy():
    """What makes help slow are these imports; seconds would depend on the machine."""
    code = f"""
import sys
from bough.cli import main
for name in {["", *table.TABLE]!r}:
    main([*name.split(), "--help"])
    heavy = {{"torch", "transformers", "pyarrow", "datasets", "peft"}} & set(sys.modules)
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


def test_debug_shows_the_traceback(tmp_path: Path):
    done = run("data", "show", str(tmp_path / "none.jsonl"), "--debug")
    assert "Traceback" in done.stderr


def test_debug_may_stand_before_the_command():
    with pytest.raises(InputError, match=r"none\.jsonl: there is no such file or folder"):
        cli.main(["--debug", "data", "show", "none.jsonl"])


@pytest.mark.parametrize(
    ("error", "code"), [(BoughError("the work failed"), 1), (RuntimeError("a defect"), 1), (KeyboardInterrupt(), 130)]
)
def test_exit_codes_say_whose_fault_it_was(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch):
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main([]) == code


def test_what_the_system_refuses_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(arguments: list[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a")

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "Error: runs/a: No space left on device\n"


@pytest.mark.parametrize("words", [["--help"], ["sft", "--help"], ["data", "formats"], ["env", "list"], ["dta"]])
def test_a_terminal_without_our_characters_is_no_reason_to_fail(words: list[str], monkeypatch: pytest.MonkeyPatch):
    said = io.BytesIO()
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):  # as Python opens them
        monkeypatch.setattr(sys, name, io.TextIOWrapper(said, "ascii", errors, write_through=True))
    assert cli.main(words) == (2 if words == ["dta"] else 0)
    shown = said.getvalue().decode("ascii")
    assert shown and "bug in Bough" not in shown


def test_records_are_shown_on_a_terminal_without_their_characters(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "größer 🙂"}, {"role": "assistant", "content": "…"}]}\n'
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "bough", "data", "show", str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 0 and rb"gr\xf6\xdfer \U0001f642" in done.stdout


def test_a_name_that_is_not_utf_8_is_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    name = os.fsdecode(bytes(tmp_path) + b"/\xff.jsonl")
    Path(name).write_text("{}\n")
    assert cli.main(["data", "stats", name]) == 2
    assert "\\udcff.jsonl' is not UTF-8" in capfd.readouterr().err
    assert cli.main(["data", "stats", str(tmp_path)]) == 2
    assert "'\\udcff.jsonl' is not UTF-8; rename the file" in capfd.readouterr().err


def test_an_interrupt_while_modules_are_loaded_ends_with_130_and_a_word(tmp_path: Path):
    """A module that is loaded for the verb interrupts its own process, and makes another error of it."""
    code = (
        "import os, signal, sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'bough.commands.data':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                raise ImportError('cannot import') from None\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from bough.cli import main\n"
        "sys.exit(main(['data', 'formats']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


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
def test_sigterm_is_answered_as_an_interrupt(
    ctrl_c: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """With SIGINT ignored, too, as in a shell's background jobs."""
    cleaned_up: list[bool] = []

    def work(*_: object) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned_up.append(True)
        return 0

    monkeypatch.setattr(cli, "_dispatch", work)
    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        assert cli.main(["collect"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "Interrupted. The same command resumes.\n" and cleaned_up
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_forked_process_ends_by_sigterm_as_ever(monkeypatch: pytest.MonkeyPatch):
    def fork(*_: object) -> int:
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        return os.WTERMSIG(os.waitpid(child, 0)[1])

    monkeypatch.setattr(cli, "_dispatch", fork)
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
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupt)
    assert cli.main(words) == 130
    assert capsys.readouterr().err.startswith(said)


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.EMFILE])
def test_an_error_of_the_system_is_a_sentence_with_its_path(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(arguments: list[str]) -> int:
        raise OSError(number, os.strerror(number), "runs/a.jsonl")

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main(["collect"]) == 1
    assert capsys.readouterr().err == f"Error: runs/a.jsonl: {os.strerror(number)}\n"
    with pytest.raises(OSError, match=r"a\.jsonl"):
        cli.main(["collect", "--debug"])


def test_an_error_of_the_system_without_a_path_says_how_to_find_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(arguments: list[str]) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main(["collect"]) == 1
    assert capsys.readouterr().err == "Error: Too many open files; --debug shows where\n"


def test_a_quoted_text_cannot_control_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(arguments: list[str]) -> int:
        raise BoughError("the server said\n\x1b]52;c;cm0gLXJm\x07\x9b2J\tno")

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert cli.main(["collect"]) == 1
    assert capsys.readouterr().err == "Error: the server said\n\\x1b]52;c;cm0gLXJm\\x07\\x9b2J\tno\n"


def test_links_are_followed_for_the_command_that_asks_for_it(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(cli, "_dispatch", lambda words: seen.append((words, follows_links())) or 0)
    for words in (["collect", "--follow-links"], ["--follow-links", "collect"], ["collect"]):
        assert cli.main(words) == 0
    assert seen == [(["collect"], True), (["collect"], True), (["collect"], False)]
