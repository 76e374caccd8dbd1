"""The pages of the documentation by name, such as `guides/runs.md`."""

from tests.blocks import ROOT

DOCS = ROOT / "docs"
# The example was written by a command, and its code is run where it is written.
PAGES = {
    str(path.relative_to(DOCS)): path.read_text()
    for path in sorted(DOCS.rglob("*.md"))
    if path.name != "example-card.md"
}
