"""Problems to solve with code: the agent may call an interpreter, and answers in text when it knows.

A reply with a tool call runs code; a reply without one is the final answer and is
graded. The reward is the grade itself, 0 to 1; rewards for calls or for wrong answers are
defined elsewhere (`bough.environments.rewards`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from pydantic import Field

from bough.chat import tool_calls
from bough.chat.tool_calls import MalformedError, Reply
from bough.config.base import Config
from bough.environments import registry
from bough.environments.base import Environment, EnvironmentFailedError, Observation
from bough.errors import BoughError, InputError
from bough.sandbox import group, isolation
from bough.sandbox.base import BrokenError, Result, SandboxError, SandboxLimits
from bough.sandbox.pool import Sandbox, Session
from bough.types import Message, Task, ToolCall
from bough.worlds.interpreter import Grade, code, math, problems, reasoning

log = logging.getLogger(__name__)
# What an agent's programs may use of a step's time, and when they are stopped by force: no
# program can make its step time out, which would be taken for a fault of the environment.
CALLS_SHARE, HARD_SHARE = 0.7, 0.9
TOOL = "code_interpreter"
TOOL_SCHEMA = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Runs Python code and returns its output and the value of its last expression. "
        "Names defined in one call can be used in the next.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code to run."}},
            "required": ["code"],
        },
    },
}
RESTARTED = "The interpreter was restarted."
KILLED = {
    "time": "the code ran longer than {limits.timeout_s:g} s and was stopped.",
    "cpu": "the code computed longer than {limits.cpu_s:g} s and was stopped.",
    "memory": "the code used more than {limits.memory_mb} MB of memory and was stopped.",
    "garbage": "the code wrote into files that are not its own and was stopped.",
}
RULES = "Solve the problem. You can run Python code with the tool {name}: use it where it helps, as often as you need. "
ANSWERS = {
    "math": "When you know the answer, give it inside \\boxed{} and call no tool.",
    "code": "When you are done, give the whole program in one ```python block and call no tool.",
    "reasoning": "When you know the answer, give it inside <answer></answer> and call no tool.",
}
# Only the user can allow running without isolation, by this variable or with the settings.
# A task cannot: tasks come from files.
CONSENT = "BOUGH_UNSAFE_NO_SANDBOX"
# Packages that grade answers or generate problems with their answers: hidden from the agent's programs.
HIDDEN = ("bough", "reasoning_gym", "math_verify", "latex2sympy2_extended")
PACKAGE = "bubblewrap"
SPLITS = {"train": range(8), "seen": range(8, 9), "unseen": range(9, 10)}  # tenths of all problems, by their hash
# Addresses of objects carry no meaning and differ from run to run.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
Key = tuple[str, SandboxLimits, str]
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, Sandbox]] = WeakKeyDictionary()


class Interpreter(Environment):
    """Problems of mathematics, programming and reasoning, with a Python interpreter as a tool."""

    name = "interpreter"
    max_turns: ClassVar[int] = 16
    reward_range = (0.0, 1.0)
    shares_loop: ClassVar[bool] = True

    class Settings(Config):
        """What the interpreter allows."""

        timeout_s: float = Field(10.0, gt=0, description="time limit of one call in seconds")
        memory_mb: int = Field(1024, ge=64, description="memory limit of one call in MB")
        unsafe_no_sandbox: bool = Field(
            False, description="run the model's code without isolation if this machine allows no sandbox"
        )

    class Options(Settings):
        """Where problems come from, and what the interpreter allows."""

        file: Path | None = Field(None, description="JSON Lines of problems: problem and answer, or prompt and tests")
        reasoning: list[str] = Field([], description="generators of reasoning-gym, by name")

    settings: ClassVar[Settings] = Settings()

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        data: dict[str, Any] = dict(task.data)
        if "kind" not in data:  # a row of a user's file, given as a task
            data |= problems.problem(data)
        self.problem = data
        for name, value in self.settings:
            if name in data and data[name] != value:
                log.warning("task %s: its %s is ignored; give it with --options %s=…", task.id, name, name)
        self.limits = SandboxLimits(timeout_s=self.settings.timeout_s, cpu_s=600.0, memory_mb=self.settings.memory_mb)
        self._session: Session | None = None
        self._calls = 0
        self._answer_seen = False

    async def start(self) -> Observation:
        kind = "math" if self.problem["kind"] == "arithmetic" else self.problem["kind"]
        if kind not in ANSWERS:
            raise InputError(f"task {self.task.id}: kind is {kind!r}; choose one of {', '.join(ANSWERS)}")
        if missing := problems.missing(self.problem, kind):
            raise InputError(f"task {self.task.id}: a {kind} problem needs {missing}")
        rules = RULES.format(name=TOOL) + ANSWERS[kind]
        return Observation.begin(rules, self.problem["problem"], tools=(TOOL_SCHEMA,))

    async def step(self, reply: str) -> Observation:
        try:
            said = Reply.of(reply).parsed
        except MalformedError as error:
            return Observation.say(str(error), error="malformed")
        try:
            return await self._use(said.calls, said.action) if said.calls else await self._end(said.action)
        except SandboxError as error:
            raise EnvironmentFailedError(str(error)) from error

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @classmethod
    async def shutdown(cls) -> None:
        """Ends the sandboxes of this event loop."""
        for runner in _SHARED.pop(asyncio.get_running_loop(), {}).values():
            await runner.close()

    @classmethod
    def lacks(cls) -> str | None:
        isolation.choose(unsafe=cls.settings.unsafe_no_sandbox)  # raises an error that says what is missing
        return None

    @classmethod
    def setup(cls) -> Iterator[str]:
        """Installs bubblewrap if this user may, and reports which sandbox code will run in."""
        isolation.check_platform()
        if shutil.which("bwrap") is None:
            apt = registry.installer()
            if apt is None:
                yield f"{PACKAGE} is not installed; {registry.NOT_ALLOWED}. Ask for: sudo apt-get install {PACKAGE}"
            else:
                yield f"Installing {PACKAGE} …"
                if not registry.install(apt, PACKAGE):
                    yield f"apt-get could not install {PACKAGE}."
        if (path := shutil.which("bwrap")) is not None:
            yield f"bubblewrap is {path}."
        yield f"Code runs in a sandbox of {isolation.choose()}."
        if group.place(os.geteuid()) is not None:
            yield "Each sandbox has a control group, which limits its memory and processes."

    @classmethod
    def tasks(cls, options: Config, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        """The problems of a file in an order that the seed fixes, or an endless series of generated ones."""
        assert isinstance(options, Interpreter.Options)
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; choose one of {', '.join(SPLITS)}")
        found: Iterator[dict[str, Any]] = ({"kind": "arithmetic", **data} for data in problems.arithmetic(seed))
        if options.file is not None and options.reasoning:
            raise InputError("file and reasoning cannot both be given")
        if options.reasoning:
            found = ({"kind": "reasoning", **data} for data in reasoning.problems(options.reasoning, seed))
        if options.file is not None:
            rows = list(problems.read(options.file))
            if not rows:
                raise InputError(f"{options.file}: the file contains no problem")
            random.Random(seed).shuffle(rows)  # noqa: S311  no secret
            found = iter(rows)
        for data in found:
            name = hashlib.blake2b(str(data["problem"]).encode(errors="replace"), digest_size=8)
            if int.from_bytes(name.digest(), "big") % 10 in SPLITS[split]:
                yield Task(id=name.hexdigest(), environment=cls.name, seed=data.get("seed"), data=data)

    def say(self, action: str, thought: str = "") -> str:
        """`action` is a call in its tags or an answer."""
        return tool_calls.write(action, thought)

    async def expert(self) -> str | None:
        """Runs the code, then answers, where the code is known: for the problems that come with Bough.

        After an agent's own calls it runs the code too, unless one of them printed the answer:
        what is answered must be on the page.
        """
        if self.problem["kind"] != "arithmetic":
            return None
        if not self._answer_seen:
            call = ToolCall(name=TOOL, arguments={"code": self.problem["code"]})
            return self.say(tool_calls.call_text(call), "I compute it.")
        return self.say(f"The answer is \\boxed{{{self.problem['answer']}}}.")

    async def _use(self, calls: tuple[ToolCall, ...], action: str) -> Observation:
        messages, wrong, killed = [], None, []
        total_s = CALLS_SHARE * self.step_timeout_s
        end = time.monotonic() + total_s
        for call in calls:
            if call.name != TOOL:
                wrong = content = f"Error: there is no tool {call.name!r:.80}; the only one is {TOOL}."
            elif not isinstance(call.arguments.get("code"), str) or len(call.arguments) > 1:
                wrong = content = f'Error: {TOOL} takes one argument, "code", a text.'
            else:
                self._calls += 1
                why: str | None = "time"
                content = f"Error: not run. All calls of one reply share {total_s:g} s, and they are used up."
                if (begin := time.monotonic()) < end:
                    if self._session is None:
                        self._session = self._sandbox("tool", self.limits, hidden=True).session()
                    session = await self._session.__aenter__()
                    end += time.monotonic() - begin  # waiting for a sandbox does not count as the program's time
                    content, why = await self._run(session, str(call.arguments["code"]), end - time.monotonic())
                killed += [why] if why else []
                self._answer_seen |= str(self.problem.get("answer", "")) in content.split()
            messages.append(Message(role="tool", content=content, name=call.name, tool_call_id=call.id))
        error = "tool_misuse" if wrong else None
        info = {"killed": killed} if killed else {}
        return Observation(messages=tuple(messages), action=action, error=error, info=info)

    async def _run(self, session: Session, source: str, left_s: float) -> tuple[str, str | None]:
        """What the agent reads after a call, and which limit ended it."""
        limits = replace(self.limits, timeout_s=min(self.limits.timeout_s, round(left_s, 1)))
        try:
            async with asyncio.timeout(left_s + (HARD_SHARE - CALLS_SHARE) * self.step_timeout_s):
                result = await session.run(source, timeout_s=limits.timeout_s)
        except (BrokenError, TimeoutError):
            return f"Error: the code broke the interpreter. {RESTARTED}", "broken"
        return result_text(result, limits), result.killed

    async def _end(self, answer: str) -> Observation:
        try:
            grade = await self._grade(answer)
        except BrokenError as error:
            grade = Grade(0.0, {"reason": str(error)})
        except BoughError:
            raise
        except Exception as error:  # what an answer causes makes it a wrong answer
            log.warning("task %s: the grader failed and the answer counts as wrong", self.task.id, exc_info=True)
            grade = Grade(0.0, {"reason": f"the grader failed: {type(error).__name__}: {error}"})
        text = "Correct." if grade.success else "Wrong." if not grade.score else f"Partly right: {grade.score:.2f}."
        return Observation.end(
            text,
            success=grade.success,
            reward=grade.score,
            action=answer,
            info={"grade": grade.details, "tool_calls": self._calls},
        )

    async def _grade(self, answer: str) -> Grade:
        data = self.problem
        budget_s = CALLS_SHARE * self.step_timeout_s
        if data["kind"] == "code":
            exam = code.Exam(list(data["tests"]), data.get("entry"), data.get("prelude", ""), data["problem"])
            program = self._sandbox("program", code.LIMITS, hidden=True)
            tests = self._sandbox("tests", code.LIMITS)
            return await code.grade(answer, exam, program, tests, budget_s=budget_s)
        if data["kind"] == "reasoning":
            runner = self._sandbox("reasoning", reasoning.LIMITS, warm_up=reasoning.WARM_UP)
            return await reasoning.grade(answer, data, runner, timeout_s=min(reasoning.TIMEOUT_S, budget_s))
        algebra = find_spec("math_verify") and (lambda: self._sandbox("math", SandboxLimits(), warm_up=math.WARM_UP))
        # An expression that takes long to compare must not make the step time out: the episode would count as lost.
        timeout_s = min(math.TIMEOUT_S, budget_s)
        question = str(data["problem"])
        return await math.grade(answer, str(data["answer"]), algebra or None, question=question, timeout_s=timeout_s)

    def _sandbox(self, use: str, limits: SandboxLimits, **more: Any) -> Sandbox:
        return shared(use, limits, unsafe=self.settings.unsafe_no_sandbox, **more)


def result_text(result: Result, limits: SandboxLimits) -> str:
    """The result of a call as the agent reads it."""
    parts = [result.stdout.rstrip("\n"), result.value or "", result.stderr.rstrip("\n")]
    parts.append("" if result.timed_out else result.error or "")
    if result.timed_out:
        parts.append(f"Error: the code ran longer than {limits.timeout_s:g} s and was stopped.")
    elif result.killed:
        parts.append(f"Error: {KILLED[result.killed].format(limits=limits)}")
    if result.killed:
        parts.append(RESTARTED)
    return _ADDRESS.sub("0x…", "\n".join(filter(None, parts))) or "(no output)"


def shared(
    use: str, limits: SandboxLimits, *, warm_up: str = "", hidden: bool = False, unsafe: bool = False
) -> Sandbox:
    """The sandbox for a use, made when it is first asked for.

    Each use has its own, so that no process that runs an agent's program descends from
    one that has held tests or answers. `hidden` leaves the graders' packages out.
    """
    kinds = _SHARED.setdefault(asyncio.get_running_loop(), {})
    key = (use, limits, warm_up)
    if key not in kinds:
        unsafe = unsafe or os.environ.get(CONSENT) == "1"
        kinds[key] = Sandbox(limits, unsafe=unsafe, warm_up=warm_up, hidden=HIDDEN if hidden else ())
    return kinds[key]
