"""Hooks of the site's build: formulas become MathML, and pages from elsewhere join the site.

These are the project's own (CHANGELOG.md and others) and a page with every setting of every command.

A formula is written as TeX between `$$` lines or `$` signs, which GitHub renders too. Browsers
read MathML as it is, so the site needs no script from elsewhere.
"""

import re
from html import escape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

from bough.commands import table
from bough.config.base import Leaf, leaves

# Files of the repository's root that are pages of the site as well.
PROJECT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
CODE = re.compile(r"(^```.*?^```|``.+?``|`[^`\n]+`)", flags=re.DOTALL | re.MULTILINE)
DISPLAYED = re.compile(r"^\$\$\n(.+?)\n\$\$$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"\$([^$\n]+)\$")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    files.append(File.generated(config, "settings.md", content=settings_page()))
    for name in PROJECT_PAGES:
        with open(name, encoding="utf-8") as page:  # noqa: PTH123
            files.append(File.generated(config, name, content=page.read().replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its formulas as MathML and its links to the project's pages as links inside the site."""
    parts = CODE.split(markdown)
    parts[::2] = map(_outside_code, parts[::2])
    return "".join(parts)


def settings_page() -> str:
    """Every command with its settings, from the same definitions as the flags."""
    parts = [
        "# All settings",
        (
            "Each setting is a flag, a key in YAML and an argument in Python, under the same name. "
            "In YAML and Python it may also be given in its part: `lora: {r: 8}` for `lora.r`, in place of `lora_r: 8`."
        ),
    ]
    for name, row in table.TABLE.items():
        config = table.command(name).config
        rows = [_row(leaf) for leaf in leaves(config).values() if not _hidden(leaf.info)]
        parts += [f"## bough {name}", f"{row.about[0].upper()}{row.about[1:]}."]
        parts += ["\n".join(["| setting | in its part | default | |", "|---|---|---|---|", *rows])] if rows else []
    return "\n\n".join(parts)


def _row(leaf: Leaf) -> str:
    default = "required" if leaf.info.is_required() else leaf.default
    shown = "" if default in (None, "", [], {}) else f"`{default}`" if default != "required" else default
    about = escape(leaf.info.description or "", quote=False).replace("|", "\\|").replace("$", "&#36;")
    nested = f"`{leaf.nested}`" if leaf.part else ""
    return f"| `{leaf.flat}` | {nested} | {shown} | {about} |"


def _hidden(info: FieldInfo) -> bool:
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get("hidden"))


def _outside_code(text: str) -> str:
    text = DISPLAYED.sub(lambda found: convert(found[1], display="block"), text)
    text = INLINE.sub(lambda found: convert(found[1]), text)
    names = "|".join(map(re.escape, PROJECT_PAGES))
    return re.sub(rf"\]\(\.\./((?:\.\./)*(?:{names}))", r"](\1", text)
