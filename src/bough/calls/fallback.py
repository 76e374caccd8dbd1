"""How tools and system messages are written for a template that supports neither.

Tools follow the Hermes convention, the one most open models have seen: the signatures
inside `<tools>` in the system message, a call as `<tool_call>{"name", "arguments"}</tool_call>`
in the assistant's text, a result as `<tool_response>` in a user message. A system
message is put before the first user message, separated by a blank line.
"""

from __future__ import annotations

import json
from typing import Any

from bough.speech.hermes import reply_text
from bough.types import Message

INSTRUCTIONS = """# Tools

You may call one or more functions. Their signatures are within <tools></tools>:
<tools>
{signatures}
</tools>

For each function call, return a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <arguments as an object>}}
</tool_call>"""


def without_tools(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """The same conversation in system, user and plain assistant messages only."""
    spoken: list[Message] = []
    in_results = False
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if in_results:
                text = f"{spoken.pop().content}\n{text}"
            spoken.append(Message(role="user", content=text))
        elif message.tool_calls:
            spoken.append(Message(role="assistant", content=reply_text(message), reasoning=message.reasoning))
        else:
            spoken.append(message)
        in_results = message.role == "tool"
    return _with_instructions(spoken, tools) if tools else spoken


def without_system(messages: list[Message]) -> list[Message]:
    """The same conversation with its system message put before the first user message."""
    if messages[0].role != "system":
        return messages
    system, *others = messages
    if not others or others[0].role != "user":
        return [Message(role="user", content=system.content), *others]
    return [Message(role="user", content=f"{system.content}\n\n{others[0].content}"), *others[1:]]


def _with_instructions(messages: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = INSTRUCTIONS.format(signatures=signatures)
    if messages[0].role == "system":
        first = Message(role="system", content=f"{messages[0].content}\n\n{instructions}")
        return [first, *messages[1:]]
    return [Message(role="system", content=instructions), *messages]
