"""Web: the pages of MiniWoB++ in a real Chromium, read as text and acted on with real events.

    Task(data={"page": "login-user"}, seed=7)

The agent sees the goal and the page as lines, acts once a turn, and the page says by
itself when it is over. Success is the page's full raw reward, 1; less is kept as the
reward. The page's clock stands still between actions.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from bough.chat.tool_calls import COMMANDS, FUNCTIONS, ActionForm, MalformedError, Reply, command_text, function_text
from bough.environments.base import Environment, Observation
from bough.errors import InputError, did_you_mean
from bough.types import Task, ToolCall
from bough.worlds.web import browser
from bough.worlds.web.actions import SIGNATURES, Action, Line, Parameter, Signature, UnknownActionError, bind, render
from bough.worlds.web.experts import clicking, filling, reading
from bough.worlds.web.experts.scene import Advice, Expert, Scene
from bough.worlds.web.page import ENOUGH, ActionRefusedError, Page, Pool, View, all_pages, html_folder, text_pages
from bough.worlds.web.setup import setup

SPEECH = {"functions": FUNCTIONS, "commands": COMMANDS}
# Splits share the pages and differ in the seeds, which never meet; MiniWoB++'s pages that
# hold words back for testing use those in the last split only.
SPLITS = {"train": 0, "seen": 1, "unseen": 2}
SEEDS_PER_SPLIT = 1 << 24


class Options(Environment.Options):
    """Which pages to play, and how the agent writes its actions."""

    pages: list[str] = Field(default=[], description="pages to play in turn; empty: all that can be solved from text")
    speech: Literal["functions", "commands"] = Field(
        default="functions", description="click('3') on numbered elements, or CLICK(selector=\"…\")"
    )
    actions: list[str] = Field(
        default=[],
        description="actions listed in the rules, such as click,fill; empty: all (a shorter prompt is faster)",
    )
    screenshots: bool = Field(default=False, description="keep a screenshot of the page at each turn")

    @field_validator("pages")
    @classmethod
    def _pages_exist(cls, pages: list[str]) -> list[str]:
        for page in pages:
            _check(page)
        return pages

    @field_validator("actions")
    @classmethod
    def _actions_exist(cls, actions: list[str]) -> list[str]:
        for action in actions:
            if action not in SIGNATURES:
                raise ValueError(f"there is no action {action!r}{did_you_mean(action, SIGNATURES)}")
        return actions


class Web(Environment):
    """MiniWoB++ pages in a real browser: click, type and choose what the task asks for."""

    name: ClassVar[str] = "web"
    max_turns: ClassVar[int] = 30
    reward_range = (-1.0, 1.0)
    shares_loop: ClassVar[bool] = True
    Options = Options

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.page_name = str(task.data.get("page", ""))
        _check(self.page_name)
        speech = str(task.data.get("speech", "functions"))
        if speech not in SPEECH:
            raise InputError(f"task {task.id}: speech is {speech!r}; choose one of {', '.join(map(repr, SPEECH))}")
        self.speech = SPEECH[speech]
        self.mode = str(task.data.get("mode", "train"))
        self.screenshots = bool(task.data.get("screenshots", False))
        actions = task.data.get("actions")
        self.actions = [str(action) for action in actions] if isinstance(actions, list) else []
        self.view: View | None = None
        self.history: list[Action] = []
        self.seen: list[View] = []
        self._page: Page | None = None
        self._pool: Pool | None = None
        self._broken = False

    @classmethod
    def tasks(cls, options: Environment.Options, *, split: str = "train", seed: int = 0) -> Iterator[Task]:
        assert isinstance(options, Options)
        if split not in SPLITS:
            raise InputError(f"split is {split!r}; choose one of {', '.join(map(repr, SPLITS))}")
        pages = options.pages or list(text_pages())
        first = random.Random(seed).randrange(SEEDS_PER_SPLIT)  # noqa: S311
        for number in range(SEEDS_PER_SPLIT * len(pages)):
            page = pages[number % len(pages)]
            page_seed = SPLITS[split] * SEEDS_PER_SPLIT + (first + number // len(pages)) % SEEDS_PER_SPLIT
            data = {
                "page": page,
                "speech": options.speech,
                **({"actions": list(options.actions)} if options.actions else {}),
                "mode": "test" if split == "unseen" else "train",
                "screenshots": options.screenshots,
            }
            yield Task(id=f"web-{page}-{page_seed}", environment=cls.name, seed=page_seed, data=data)

    @classmethod
    def setup(cls) -> Iterator[str]:
        """Installs a browser, for `bough env setup web`."""
        return setup()

    @classmethod
    def lacks(cls) -> str | None:
        html_folder()  # raises an InputError that names the missing package
        return None if browser.find() is not None else browser.NONE_FOUND

    @classmethod
    async def shutdown(cls) -> None:
        Pool.here().shut()

    async def start(self) -> Observation:
        self._pool = Pool.here()
        async with self._pool.starts:
            self._page = await self._pool.take(self.page_name)
            try:
                self.view = await self._page.start(self.page_name, self.task.seed or 0, self.mode)
                images = await self._images()
            except BaseException:
                self._broken = True
                raise
        content = f"Goal: {self.view.goal}\n\n{self._shown()}"
        return Observation.begin(text(self.speech, self.actions), content, images=images, info={"page": self.page_name})

    async def step(self, reply: str) -> Observation:
        view = self.view
        if view is None or self._page is None or view.done or view.left:
            return Observation.end("The episode is over.", error="invalid_action")
        try:
            said = self.speech.parse(reply)
        except MalformedError as error:
            return Observation.say(str(error), error="malformed", reward=0.0, progress=0.0)
        try:
            action = bind(said.calls[0])
            after = await self._page.act(action)
            images = await self._images()
        except (UnknownActionError, ActionRefusedError) as error:
            return Observation.say(str(error), action=said.action, error="invalid_action", reward=0.0, progress=0.0)
        except BaseException:
            self._broken = True
            raise
        self.history.append(action)
        self.seen.append(view)
        self.view = view = after
        given: dict[str, Any] = {"action": said.action, "images": images}
        if view.left:
            return Observation.end("You left the page.", success=False, reward=-1.0, stop="left_page", **given)
        if not view.done:
            return Observation.say(self._shown(), reward=0.0, progress=0.0, **given)
        success = view.reward >= ENOUGH.get(self.page_name, 1.0)
        given |= {"reward": view.reward, "progress": max(0.0, view.reward), "info": {"reason": view.reason}}
        return Observation.end("Done." if success else "That was not what was asked.", success=success, **given)

    async def close(self) -> None:
        page, self._page = self._page, None
        if page is not None and self._pool is not None:
            await self._pool.give_back(page, sound=not self._broken)

    def say(self, action: str, thought: str = "") -> str:
        return self.speech.write(action, thought)

    def action_in(self, reply: Reply) -> str | None:
        try:
            return self.speech.parse(reply).action
        except MalformedError:
            return None

    async def expert(self) -> str | None:
        if self.view is None or self.view.done:
            return None
        advice = advise(self.page_name, self.view, self.history, self.seen)
        if advice is None:
            return None
        return self.say(self._spelled(advice.call), advice.thought)

    def choices(self) -> Sequence[str]:
        if self.view is None or self.view.done:
            return ()
        return [self._spelled(call) for call in choices(self.view)]

    def _shown(self) -> str:
        assert self.view is not None
        return render(self.view.lines, selectors=self.speech is COMMANDS)

    def _spelled(self, call: ToolCall) -> str:
        """A call on numbered elements in the words of this episode's form of speech."""
        if self.speech is FUNCTIONS:
            return function_text(call)
        assert self.view is not None
        return as_command(call, self.view.lines)

    async def _images(self) -> tuple[bytes, ...]:
        if not self.screenshots:
            return ()
        assert self._page is not None
        return (await self._page.screenshot(),)


def _check(page: str) -> None:
    if page not in all_pages():
        raise InputError(f"{page!r} is not a page of MiniWoB++{did_you_mean(page, all_pages())}")


# Possible actions on a page, for an agent that plays at random.

FIELDS = {"text", "password", "textarea", "number", "search", "email"}


def choices(view: View) -> list[ToolCall]:
    """A click on each element, the options of each list, the goal's words in each field."""
    words = list(dict.fromkeys(re.findall(r'"([^"]+)"', view.goal))) or view.goal.split()[-1:]
    calls = []
    for line in view.lines:
        if not line.number or line.facts.get("disabled"):
            continue
        number = str(line.number)
        if line.kind == "select":
            options = [option for option in line.facts["options"] if option]
            calls += [ToolCall(name="select_option", arguments={"0": number, "1": option}) for option in options]
            continue
        calls.append(ToolCall(name="click", arguments={"0": number}))
        if line.kind in FIELDS:
            calls += [ToolCall(name="fill", arguments={"0": number, "1": word}) for word in words]
    return calls


# The rules that an agent reads before it sees a page: the actions, and how to write them.


def text(speech: ActionForm, actions: Collection[str] = ()) -> str:
    """The rules for a form of speech, with `actions` only, where some are named."""
    as_commands = speech is COMMANDS
    shown = "with their selectors" if as_commands else "with a number each"
    offered = [signature for name, signature in SIGNATURES.items() if not actions or name in actions]
    lines = "\n".join(f"{_usage(signature, as_commands)} - {signature.about}" for signature in offered)
    return (
        f"You use a web page to reach a goal. You see its elements {shown}, and act once each turn.\n\n"
        f"Actions:\n{lines}\n\n{speech.prompt}"
    )


def as_command(call: ToolCall, lines: Iterable[Line]) -> str:
    """A call on numbered elements, as a command on selectors."""
    selectors = {line.number: line.selector for line in lines if line.number}
    signature = SIGNATURES[call.name]
    arguments = {}
    for parameter, value in zip(signature.parameters, call.arguments.values(), strict=False):
        if parameter.kind == "element":
            value = selectors[int(str(value))]
        arguments[_command_name(parameter)] = value
    return command_text(ToolCall(name=call.name, arguments=arguments))


def _usage(signature: Signature, as_commands: bool) -> str:
    if not as_commands:
        example = {"element": "'3'", "text": "'text'", "options": "'option'", "key": "'Enter'", "direction": "'down'"}
        words = [example.get(p.kind, p.name) for p in signature.parameters if not p.optional]
        return f"{signature.name}({', '.join(words)})"
    words = [f'{_command_name(p)}="…"' for p in signature.parameters if not p.optional]
    return f"{signature.name.upper()}({', '.join(words)})"


def _command_name(parameter: Parameter) -> str:
    return "selector" if parameter.name == "element" else parameter.name


# The expert: one function for each page, by name.

EXPERTS: dict[str, Expert] = {**clicking.EXPERTS, **filling.EXPERTS, **reading.EXPERTS}


def advise(page: str, view: View, history: Sequence[Action], seen: Sequence[View] = ()) -> Advice | None:
    """What an expert would do on this page now; None where there is no expert, or it does not know."""
    expert = EXPERTS.get(page)
    if expert is None:
        return None
    try:
        return expert(Scene(view.goal, view.lines, history, [past.lines for past in seen]))
    except (LookupError, ValueError, StopIteration):  # what it looked for is not there
        return None
