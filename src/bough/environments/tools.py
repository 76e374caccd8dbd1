"""Tools from plain methods: each public method of a `ToolEnvironment` is a tool.

    class Shop(ToolEnvironment):
        def start(self) -> str:
            self.sold = 0
            return "Sell three apples."

        def sell(self, item: str, count: int = 1) -> str:
            \"\"\"Sells an item.

            Args:
                item: What to sell.
            \"\"\"
            self.sold += count if item == "apple" else 0
            return f"Sold {count} {item}."

        def success(self) -> bool:
            return self.sold == 3

A method whose name begins with an underscore is not a tool, nor is one of `Environment`'s own.
If any method is marked with `@tool`, only marked ones are tools. The agent gets a JSON schema
of each, made from its signature and docstring. Methods may be plain functions or `async def`;
one that waits for something should be `async def`, so that it can be stopped in time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import ValidationError

from bough.environments.tool_calls import MisuseError, ToolCallEnvironment
from bough.environments.tool_schema import ToolSchema
from bough.errors import InputError, short_path
from bough.speech import functions, hermes
from bough.types import ToolCall

F = TypeVar("F", bound=Callable[..., Any])
MARK = "_bough_tool"
# Methods for authors to call. One of the same name would be meant as a tool, and hide them.
FIXED = ("call", "end")


def tool(method: F) -> F:
    """Marks a method as a tool. Its parameters need type annotations, and it needs a docstring."""
    setattr(method, MARK, True)
    return method


class ToolEnvironment(ToolCallEnvironment):
    """An environment that is written as `start` and methods, which are its tools.

    A reply without a tool call goes to `answer`.
    """

    schemas: ClassVar[dict[str, ToolSchema]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        marked = [name for name in names if getattr(getattr(cls, name, None), MARK, False)]
        hidden = [name for name in FIXED if getattr(cls, name) is not getattr(ToolEnvironment, name)]
        if taken := hidden + [name for name in marked if hasattr(ToolEnvironment, name)]:
            raise TypeError(f"tool {cls.__name__}.{taken[0]}: every environment has {taken[0]}; choose another name")
        cls.schemas = {name: ToolSchema.of(cls, name) for name in marked or _public(cls)}
        cls.tools = tuple(schema.to_json() for schema in cls.schemas.values())

    @property
    def tool_names(self) -> Sequence[str]:
        return list(self.schemas)

    def _use(self, call: ToolCall) -> Any:
        schema = self.schemas[call.name]
        try:
            arguments = schema.read(call.arguments)
        except ValidationError as error:
            raise MisuseError(schema.explain(error)) from None
        return getattr(self, call.name)(**arguments)

    def call(self, name: str, thought: str = "", /, **arguments: Any) -> str:
        """The reply that calls a tool, for experts: `return self.call("sell", item="apple")`.

        Raises InputError for a tool that does not exist; wrong arguments are for `step` to answer.
        """
        if name not in self.schemas:
            author = sys._getframe(1)
            raise InputError(
                f"{short_path(author.f_code.co_filename)}:{author.f_lineno}: {type(self).__name__} has no tool "
                f"{name!r:.80}; the tools are {', '.join(self.schemas) or 'none'}"
            )
        return hermes.write(hermes.call_text(ToolCall(name=name, arguments=arguments)), thought)

    def say(self, action: str, thought: str = "") -> str:
        """`action` may be written as in Python, `sell("apple", count=2)`; anything else is an answer."""
        call = functions.read_call(action)
        if call is None or call.name not in self.schemas:
            return hermes.write(action, thought)
        return self.call(call.name, thought, **self.schemas[call.name].named(call.arguments))


def _public(cls: type[ToolEnvironment]) -> Iterator[str]:
    """The methods that are tools without a mark: public ones that the author wrote, in the order of the file."""
    seen = set[str]()
    for base in reversed(cls.__mro__):
        if not issubclass(base, ToolEnvironment) or base is ToolEnvironment:
            continue
        for name, value in vars(base).items():
            own = inspect.isfunction(value) and not name.startswith("_") and not hasattr(ToolEnvironment, name)
            if own and name not in seen and inspect.isfunction(getattr(cls, name)):
                seen.add(name)
                yield name
