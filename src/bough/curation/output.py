"""Writing curated records with their ledgers next to them; both completely or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bough.disk import replacing, write_json
from bough.errors import InputError
from bough.formats.base import Sample
from bough.ledger import Ledger
from bough.trajectories.writer import ENDINGS, Writer


def ledger_path(output: Path) -> Path:
    """The ledger of pairs.jsonl is pairs.ledger.json."""
    ending = next(ending for ending in ENDINGS if output.name.endswith(ending))
    return output.with_name(output.name.removesuffix(ending) + ".ledger.json")


def write_out(output: Path, records: Iterable[Sample], ledgers: Sequence[Ledger], **more: Any) -> int:
    """Writes the records, and their ledgers with `more`; returns the number of records.

    Raises InputError with the ledgers if there are no records.
    """
    with replacing(output) as draft:
        with Writer(draft, batch=1024, batch_s=60) as writer:
            for record in records:
                writer.write(record)
            writer.flush()
        if not writer.written:
            raise InputError(f"there is nothing to write to {output}:", [str(ledger) for ledger in ledgers])
        write_json(ledger_path(output), {"ledgers": [ledger.to_json() for ledger in ledgers], **more})
    return writer.written
