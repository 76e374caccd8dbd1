"""Chat templates that drop the thoughts of older replies (Qwen3), reduced to ones that do not.

Such a template looks for the last question: a user's message that is not a tool result. Replies
before it lose their text up to `</think>`, later ones keep it. So if a conversation ends with a
question, all of its replies lose their thoughts, and the template writes the same text as one
without this search, given replies from which the thoughts are removed (`without_thoughts`).

The search and the removal are known by their statements; a template that has them in another
form, or uses what they find elsewhere, is not reduced.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, nodes

from bough.types import Message

END = "</think>"
_SEARCH = """
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and IS_TEXT not(
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}"""
# Branches that no reply takes.
_NO_REPLY = (
    "(message.role == 'user') or (message.role == 'system' and not loop.first)",
    *("message.role == 'user'", "message.role == 'system'", "message.role == 'tool'"),
)


def _parsed(source: str) -> list[nodes.Node]:
    return Environment().parse(source).body  # noqa: S701  only parses


def _expression(source: str) -> nodes.Node:
    [output] = _parsed("{{ " + source + " }}")
    assert isinstance(output, nodes.Output)
    return output.nodes[0]


SEARCHES = [_parsed(_SEARCH.replace("IS_TEXT", form)) for form in ("message.content is string and", "")]
AFTER_QUESTION = _expression("loop.index0 > ns.last_query_index")
NO_REPLY = [_expression(source) for source in _NO_REPLY]
CONTENT = _expression("message.content")
# What the thoughts are removed from, with the test for them and the rest.
REMOVALS = [
    (_expression(f"'{END}' in {name}"), _expression(f"{name}.split('{END}')[-1].lstrip('\\n')"))
    for name in ("content", "message.content")
]


def without_thoughts(reply: str) -> str:
    """What such a template shows of an older reply."""
    return reply.split(END)[-1].lstrip("\n") if END in reply else reply


def is_question(message: Message) -> bool:
    """Whether the search surely stops at this message."""
    return message.role == "user" and "tool_response>" not in message.content + (message.hint or "")


def reduce_template(template: nodes.Template) -> bool:
    """Takes search and removal out of a template; False if it does not have them, and then it is as it was."""
    place = next((i for i in range(len(template.body)) if template.body[i : i + 2] in SEARCHES), None)
    if place is None:
        return False
    before = list(template.body)
    template.body[place : place + 2] = []
    template.body = _reduced(template.body)
    if _still_used(template):
        template.body = before
        return False
    return True


def _reduced(body: list[nodes.Node]) -> list[nodes.Node]:
    """The statements without what is only done after the last question, and without the removal of thoughts."""
    found: list[nodes.Node] = []
    for node in body:
        if isinstance(node, nodes.If) and node.test == AFTER_QUESTION and not node.elif_:
            found += _reduced(node.else_)
        elif not _removes_thoughts(node):
            found.append(_with_reduced_parts(node))
    return found


def _with_reduced_parts(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.If):
        elif_ = [nodes.If(each.test, _reduced(each.body), [], []) for each in node.elif_]
        return nodes.If(node.test, _reduced(node.body), elif_, _reduced(node.else_))
    if isinstance(node, nodes.For):
        return nodes.For(node.target, node.iter, _reduced(node.body), node.else_, node.test, node.recursive)
    return node


def _removes_thoughts(node: nodes.Node) -> bool:
    """`{% if '</think>' in content %}` with nothing but the thoughts and the rest being set."""
    if not isinstance(node, nodes.If) or node.elif_ or node.else_:
        return False
    for test, rest in REMOVALS:
        if node.test == test:
            values = [(_set(each), each.node) for each in node.body if isinstance(each, nodes.Assign)]
            contents = [value for name, value in values if name == "content"]
            names = {name for name, _ in values}
            return len(values) == len(node.body) and contents == [rest] and names <= {"content", "reasoning_content"}
    return False


def _still_used(template: nodes.Template) -> bool:
    """Whether what was taken out matters elsewhere: then the reduced template would write something else."""
    found = {name.name for name in template.find_all(nodes.Name) if name.ctx == "load"}
    if found & {"ns", "reasoning_content"} or any(template.find_all(nodes.NSRef)):
        return True
    assigned = [each.node for each in template.find_all(nodes.Assign) if _set(each) == "content"]
    if any(value not in (CONTENT, nodes.Const("")) for value in assigned):
        return True
    return any(_contents_of_replies(template.body))


def _contents_of_replies(body: list[nodes.Node]) -> Iterator[nodes.Node]:
    """Where the content of a reply may be used as it is, with its thoughts."""
    for node in body:
        match node:
            case nodes.Assign() if node.node == CONTENT and _set(node) == "content":
                pass
            case nodes.If():
                branches = [(node.test, node.body), *((each.test, each.body) for each in node.elif_)]
                for test, inner in branches:
                    if test not in NO_REPLY:
                        yield from _used(test)
                        yield from _contents_of_replies(inner)
                yield from _contents_of_replies(node.else_)
            case nodes.For():
                yield from _used(node.iter)
                yield from _contents_of_replies(node.body)
            case _:
                yield from _used(node)


def _used(node: nodes.Node) -> Iterator[nodes.Node]:
    if isinstance(node, nodes.Test) and node.name == "string":
        return
    if node == CONTENT:
        yield node
    for child in node.iter_child_nodes():
        yield from _used(child)


def _set(node: nodes.Assign) -> str | None:
    return node.target.name if isinstance(node.target, nodes.Name) else None
