"""Which templates render each message by itself."""

import pytest

from bough.chat.growing import locality
from tests.chat.conftest import TEMPLATES

CHATML = "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
TAIL = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def loop(body: str, *, head: str = "", tail: str = TAIL, over: str = "messages") -> str:
    return head + "{% for message in " + over + " %}" + body + "{% endfor %}" + tail


QWEN3 = (TEMPLATES / "qwen3.jinja").read_text()
# As Qwen published it first: thoughts are taken from the message, and users' messages are shown as they are.
EARLIER_QWEN3 = (
    QWEN3.replace(" and message.content is string", "")
    .replace("'</think>' in content", "'</think>' in message.content")
    .replace("content.split('</think>')", "message.content.split('</think>')")
    .replace("'\\n' + content + '<|im_end|>'", "'\\n' + message.content + '<|im_end|>'")
)
LOCAL = {
    "qwen3": QWEN3,
    "earlier qwen3": EARLIER_QWEN3,
    "qwen2.5": (TEMPLATES / "qwen2.5.jinja").read_text(),
    "a variable that holds the content": loop(
        "{% set text = message['content'] | trim %}{% if loop.index0 == 0 %}{% set text = 'S: ' + text %}{% endif %}"
        "{{ '<|im_start|>' + message.role + '\n' + text ~ '<|im_end|>' }}"
    ),
    "the system message apart": loop(
        CHATML,
        head="{% if messages[0].role == 'system' %}{% set others = messages[1:] %}{{ messages[0].content }}"
        "{% else %}{% set others = messages %}{% endif %}",
        over="others",
    ),
    "the end of the last message differs": loop(
        "{{ message.role + ': ' + message.content }}{{ '<|im_end|>' if not loop.last else '<|im_end|>!' }}",
        tail="{% if messages[-1].role != 'assistant' %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    "neighbours": loop(
        "{% if loop.previtem and loop.previtem.role == message.role %}{{ '+' }}{% endif %}" + CHATML
        + "{% if loop.nextitem is defined and loop.nextitem.role == 'tool' %}{{ 'calls' }}{% endif %}"
    ),
    "an empty content": loop("{% if message.content %}" + CHATML + "{% else %}{{ 'nothing<|im_end|>' }}{% endif %}"),
    "a macro": "{% macro header(role) %}{{ '<|im_start|>' + role + '\n' }}{% endmacro %}"
    + loop("{{ header(message.role) + message.content + '<|im_end|>' }}"),
    "even and odd": loop("{{ 'even' if loop.index0 % 2 == 0 else 'odd' }}" + CHATML),
    "skips": loop("{% if message.role == 'system' %}{% continue %}{% endif %}" + CHATML),
}  # fmt: skip
NOT_LOCAL = {
    "counts messages": loop(CHATML, tail="{{ messages | length }}" + TAIL),
    "numbers messages": loop("{{ loop.index }}" + CHATML),
    "numbers from the end": loop("{{ loop.revindex }}" + CHATML),
    "drops old replies": loop(
        "{% if message.role == 'assistant' and not loop.last %}{{ 'dropped<|im_end|>' }}{% else %}" + CHATML
        + "{% endif %}",
        head="{% set last = messages | last %}",
    ),
    "marks the last message first": loop(CHATML, head="{{ messages[-1].role }}"),
    "remembers": loop(
        "{% if ns.seen %}{{ '+' }}{% endif %}{% if message.role == 'tool' %}{% set ns.seen = true %}{% endif %}"
        + CHATML,
        head="{% set ns = namespace(seen=false) %}",
    ),
    "looks at contents": loop("{% if 'x' in message.content %}{{ 'X' }}{% endif %}" + CHATML),
    "splits contents": loop("{{ message.content.split('</think>')[-1] + '<|im_end|>' }}"),
    "trims around contents": loop("{{ (' ' + message.content + ' ') | trim + '<|im_end|>' }}"),
    "asks whether a trimmed content is empty": loop(
        "{% if message.content | trim %}{{ message.content + '<|im_end|>' }}{% else %}{{ 'none<|im_end|>' }}{% endif %}"
    ),
    "changes contents": loop("{{ message.content | replace('go', 'walk') + '<|im_end|>' }}"),
    "prints the message": loop("{{ message.content + '<|im_end|>' + message | string }}"),
    "looks at the content of a neighbour": loop(
        "{% if loop.previtem and loop.previtem.content == 'go' %}{{ '+' }}{% endif %}" + CHATML
    ),
    "looks around the end": loop("{% if messages[loop.index0 - 1].role == 'tool' %}{{ '+' }}{% endif %}" + CHATML),
    "two loops": loop(CHATML, tail="{% for m in messages %}{{ m.role }}{% endfor %}" + TAIL),
    "backwards": loop(CHATML, over="messages[::-1]"),
    "a filtered loop": loop(CHATML, over="messages if message.role != 'system'"),
    "a joiner": loop("{{ sep() }}" + CHATML, head="{% set sep = joiner('|') %}"),
    "the time": loop(CHATML, head="{{ strftime_now('%H:%M:%S.%f')[:0] }}"),
    "stops": loop("{% if message.role == 'tool' %}{% break %}{% endif %}" + CHATML),
    "passes the message on": "{% macro show(m) %}{{ m.content + '<|im_end|>' }}{% endmacro %}"
    + loop("{{ show(message) }}"),
    "another name for the message": loop("{% set m = message %}{{ m.content + '<|im_end|>' }}"),
    "another name for the conversation": loop(
        CHATML, head="{% set rest = messages[1:] %}{% set rest = rest[1:] %}", over="rest"
    ),
    "a macro that sees the conversation": "{% macro count() %}{{ messages[0].role }}{% endmacro %}"
    "{% set messages = messages[1:] %}" + loop("{{ count() }}" + CHATML),
}  # fmt: skip

# Templates that look for the last question, but use what they find in another way.
NOT_REDUCED = {
    "counts up to the last question": QWEN3 + "{{ ns.last_query_index }}",
    "remembers thoughts": QWEN3.replace("{{- '<|im_end|>\\n' }}", "{{- reasoning_content + '<|im_end|>\\n' }}"),
    "removes thoughts from a trimmed reply": QWEN3.replace(
        "set content = message.content %}", "set content = message.content | trim %}"
    ),
    "shows a reply with its thoughts": QWEN3.replace(
        "{%- else %}\n            {{- '<|im_start|>' + message.role + '\\n' + content }}",
        "{%- else %}\n            {{- '<|im_start|>' + message.role + '\\n' + message.content }}",
    ),
    "splits thoughts otherwise": QWEN3.replace(
        "[-1].lstrip('\\n') %}\n            {%- endif", "[-1] %}\n            {%- endif"
    ),
    "another last question": QWEN3.replace('message.role == "user" and message', 'message.role == "tool" and message'),
}


@pytest.mark.parametrize("name", LOCAL)
def test_templates_that_write_message_by_message_are_local(name: str):
    assert locality(LOCAL[name]) is not None


@pytest.mark.parametrize("name", [*NOT_LOCAL, *NOT_REDUCED])
def test_templates_whose_text_depends_on_more_are_not(name: str):
    assert locality({**NOT_LOCAL, **NOT_REDUCED}[name]) is None


def test_the_families():
    found = {file.stem: locality(file.read_text()) for file in TEMPLATES.glob("*.jinja")}
    local = {"chatml", "llama3", "llama3.1", "gemma", "qwen2.5", "qwen3"}
    assert {name for name, proof in found.items() if proof} == local
    assert {name for name, proof in found.items() if proof and proof.parity} == {"gemma"}
    assert {name for name, proof in found.items() if proof and proof.drops_thoughts} == {"qwen3"}


def test_variants_are_variants():
    assert len({QWEN3, EARLIER_QWEN3, *NOT_REDUCED.values()}) == 2 + len(NOT_REDUCED)


def test_what_is_no_template_is_not_local():
    assert locality("{% for") is None
    assert locality("{% generation %}{% endgeneration %}") is None
    assert locality("Hello") is None
