"""What a file is that is not a data file, told by its first bytes: one sentence instead of a thousand bad lines."""

from __future__ import annotations

READABLE = (
    "Bough reads JSON Lines (.jsonl, also .zst, .gz, .xz), a JSON list (.json), CSV with a header (.csv, .tsv), "
    "Parquet (.parquet), inspect_ai logs (.eval, .json), a saved Hugging Face dataset, or hf://org/name"
)
# First bytes, and what a file that has them is.
KINDS: dict[bytes, str] = {
    b"PK\x03\x04": "a ZIP archive (Excel and Word files are such archives too); unpack it, or save the table as CSV",
    b"%PDF": "a PDF document",
    b"\x1f\x8b": "gzip data; its name must end in .gz",
    b"\xfd7zXZ": "xz data; its name must end in .xz",
    b"\x28\xb5\x2f\xfd": "Zstandard data; its name must end in .zst",
    b"BZh": "bzip2 data; unpack it",
    b"PAR1": "Parquet data; its name must end in .parquet",
    b"ARROW1": "an Arrow file; save the dataset with save_to_disk, or as Parquet",
    b"SQLite format 3": "an SQLite database; export the table as CSV",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GGUF": "a model, not data; name it with --model",
    b"\x93NUMPY": "a NumPy array",
    b"\x80\x02": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x03": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x04": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"\x80\x05": "a Python pickle, which runs code when it is loaded; save the data as JSON Lines",
    b"<?xml": "XML",
    b"<!DOCTYPE": "a web page",
    b"<html": "a web page",
}


def not_data(begin: bytes) -> str | None:
    """A sentence for a file that begins so and holds no rows; None for one that may be text."""
    for magic, kind in KINDS.items():
        if begin.startswith(magic):
            return f"the file is {kind}. {READABLE}"
    first_line = begin[:1024].partition(b"\n")[0]
    if b"\0" in first_line and not first_line.startswith((b"{", b"[")):  # a damaged row is only that row
        return f"the file is binary data of an unknown kind. {READABLE}"
    return None
