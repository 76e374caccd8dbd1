"""`bough card` and `bough push`."""

from __future__ import annotations

from pathlib import Path

from rich.filesize import decimal

from bough.cards.card import write_card
from bough.cards.release import Release, make_release
from bough.cards.subject import find_subject
from bough.cards.upload import upload
from bough.config.card import CardConfig, PushConfig
from bough.plural import plural
from bough.terminal import console


def card(config: CardConfig) -> int:
    made = write_card(config)
    for missing in made.missing:
        console.err().print(f"note: {console.printable(missing)}", style="yellow", markup=False)
    if config.as_json:
        console.print_json({"card": str(made.path), "missing": made.missing})
        return 0
    console.out().print(f"card written to {made.path}", markup=False)
    return 0


def push(config: PushConfig) -> int:
    subject = find_subject(config.run, [])
    release = make_release(subject, config.base_model)
    out, err = console.err() if config.as_json else console.out(), console.err()
    for name in release.files:
        note = " (the base model by its name on the Hub)" if name in release.changed else ""
        out.print(f"{decimal(release.size(name)):>10}  {name}{note}", markup=False)
    for name in release.naming([Path.home(), Path.cwd(), subject.run.resolve()]):
        err.print(f"note: {name} contains a path of this machine", style="yellow", markup=False)
    if config.repo not in (subject.weights / "README.md").read_text(encoding="utf-8", errors="replace"):
        hint = f"bough card {config.run} --repo {config.repo} --overwrite"
        err.print(
            f"note: the card does not mention {config.repo}; `{hint}` writes one that does",
            style="yellow",
            markup=False,
        )
    visibility = " as a private repository" if config.private else ""
    if config.dry_run:
        out.print(
            f"{plural(len(release.files), 'file')} would be uploaded to {config.repo}{visibility}; "
            "nothing was uploaded",
            markup=False,
        )
        return _print_json(config, release, None)
    address = upload(release, config.repo, private=config.private, message=config.message)
    out.print(f"{plural(len(release.files), 'file')} uploaded to {address}", markup=False)
    return _print_json(config, release, address)


def _print_json(config: PushConfig, release: Release, address: str | None) -> int:
    if config.as_json:
        sizes = {name: release.size(name) for name in release.files}
        console.print_json({"repo": config.repo, "files": sizes, "uploaded_to": address})
    return 0
