"""Plain technical English: phrases that are not used, each with what to write instead.

Docstrings, comments and strings of the package and all pages are searched line by line. A phrase is
in the list only if it has no other use; add one when a reader stumbles over it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blocks import ROOT

INSTEAD = {
    r"\bgone through\b": "number of passes over the data",
    r"\bshortened to it\b": "clip the gradient norm to this value",
    r"\bbehind (the )?step\b": "after step",
    r"\bworld's custom\b": "the environment's own limit",
    r"\bgo(es)? on where\b": "resumes",
    r"\bplayed with other settings\b": "recorded with different settings",
    r"\b[Ww]hat came of\b": "the result of",
    r"\b[Hh]ere it is decided\b": "decides",
    r"\brows that are none\b": "dropped rows",
    r"\bhas not heard of\b": "did not receive",
    r"\bgot furthest\b": "most progress",
    r"\bgot further\b": "made more progress",
    r"\bof equals the shortest\b": "then fewer turns",
    r"\bseen to pass\b": "re-tested",
    r"\bmend(ed|s|ing)?\b": "fix",
    r"\bso many (replies|turns|tokens|tasks|characters|times|steps)\b": "this many",
    r"\banew\b": "again",
    r"\bnobody (has|is|can|will|does|else|reads|knows)\b": "no one",
    r"\blies (below|under|beside)\b": "is",
    r"\bstands there\b": "is there",
    r"\b(goes|go|going|went) on\b": "continues",
    r"\blive(s)? on\b": "survives",
    r"\blearnt from\b": "trained on",
    r"\btalked into\b": "persuaded",
    r"\bteach(es)? (nothing|something)\b": "zero variance; no training signal",
    r"\bin vain\b": "without result",
    r"\bupon\b": "on",
    r"\bin its stead\b": "instead",
    r"\bno fault of\b": "not caused by",
    r"\bhas no token left\b": "finished sequences",
    r"\bmay fall to this share\b": "below this fraction",
    r"\bwhose doing\b": "the cause",
    r"\bthrice\b": "three times",
    r"\bholds? (episodes|records|rows|runs|checkpoints|no episode)\b": "contains",
    r"\b(it|this|that|which) is no (error|mistake|answer|number|file|folder|name|run|model|page)\b": "is not a",
    r"\bthat are none\b": "name what they are",
    r"\bcomes of\b": "results from",
}
PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in INSTEAD))
SOURCE = sorted(ROOT.glob("src/bough/**/*.py"))
PAGES = [
    path
    for path in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    if path.name != "example-card.md"  # as the command wrote it, with what a model said
]


def found(path: Path) -> Iterator[str]:
    """Each banned phrase in a file, as a problem that names the line, the phrase and what to write."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for phrase in PATTERN.finditer(line):
            instead = next(new for old, new in INSTEAD.items() if re.fullmatch(old, phrase[0]))
            yield f"{path.relative_to(ROOT)}:{number}: {phrase[0]!r}; write: {instead}"


@pytest.mark.parametrize("paths", [SOURCE, PAGES], ids=["src", "docs"])
def test_no_banned_phrase_is_used(paths: list[Path]):
    assert len(paths) > 30
    problems = [problem for path in paths for problem in found(path)]
    assert not problems, "\n" + "\n".join(problems)


def test_a_banned_phrase_is_named_with_its_line_and_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("Fine.\nThe run goes on where it was, and nobody is to mend it.\n")
    assert list(found(page)) == [
        "page.md:2: 'goes on where'; write: resumes",
        "page.md:2: 'nobody is'; write: no one",
        "page.md:2: 'mend'; write: fix",
    ]
