"""Hooks of the site's build: formulas become MathML, and the project's own pages join the site.

A formula is written as TeX between `$$` lines or `$` signs, which GitHub renders too. Browsers
read MathML as it is, so the site needs no script from elsewhere.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

# Files of the repository's root that are pages of the site as well.
PROJECT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
CODE = re.compile(r"(^```.*?^```|``.+?``|`[^`\n]+`)", flags=re.DOTALL | re.MULTILINE)
DISPLAYED = re.compile(r"^\$\$\n(.+?)\n\$\$$", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"\$([^$\n]+)\$")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside docs/."""
    for name in PROJECT_PAGES:
        with open(name, encoding="utf-8") as page:  # noqa: PTH123
            files.append(File.generated(config, name, content=page.read().replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its formulas as MathML and its links to the project's pages as links inside the site."""
    parts = CODE.split(markdown)
    parts[::2] = map(_outside_code, parts[::2])
    return "".join(parts)


def _outside_code(text: str) -> str:
    text = DISPLAYED.sub(lambda found: convert(found[1], display="block"), text)
    text = INLINE.sub(lambda found: convert(found[1]), text)
    names = "|".join(map(re.escape, PROJECT_PAGES))
    return re.sub(rf"\]\(\.\./((?:\.\./)*(?:{names}))", r"](\1", text)
