import re
from html import escape

from markdown_it import MarkdownIt

from bough.report.lineage import code, fenced, plain, table


def test_nothing_in_plain_text_is_markup():
    hostile = "<script>alert(1)</script> [a](javascript:x) **b** `c` | d\n# e http://evil.example www.evil.example @all"
    shown = plain(hostile)
    assert "\n" not in shown
    for mark in ("<", ">", "[", "]", "*", "`", "|", "#", "@"):
        assert not re.search(rf"(?<!\\){re.escape(mark)}", shown), mark
    assert "http://" not in shown and "www." not in shown
    assert MarkdownIt("commonmark").render(shown) == f"<p>{escape(hostile.replace(chr(10), ' '), quote=False)}</p>\n"
    assert re.sub(r"\\(.)", r"\1", shown) == hostile.replace("\n", " ")


def test_control_characters_are_made_visible():
    assert plain("a\x1b[31mb\u202ec") == "a␛\\[31mb�c"
    assert "\x1b" not in fenced("a\x1b[31m") and "\x1b" not in code("a\x1b[31m")


def test_a_code_span_holds_ticks_and_bars():
    assert code("loop") == "`loop`"
    assert code("a|b") == "`a\\|b`"
    assert code("a``b") == "``` a``b ```"
    assert code("a\nb") == "`a b`"
    assert code("  ") == "`–`"


def test_nothing_ends_a_block_but_its_fence():
    assert MarkdownIt().render(fenced("```\n<b>")) == "<pre><code>```\n&lt;b&gt;\n</code></pre>\n"
    block = fenced("x\n```\n````\n<b>\r\n", "python")
    assert block == "`````python\nx\n```\n````\n<b>\n`````"
    assert fenced("x") == "```\nx\n```"


def test_a_table_has_a_line_under_its_heading():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
