import json
import subprocess
import sys
from typing import Any

from bough.models.resolve import resolve


def answers(*questions: dict[str, Any]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(
        [sys.executable, "-m", "bough.report.viewer.rendering"], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_line_is_a_question_with_an_answer():
    from tokenizers import Tokenizer

    folder, text = str(resolve("tiny")), "go to shelf 1 – größer 你好 🙂"
    ids = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text, add_special_tokens=False).ids
    nothing, found, others, gone, unknown = answers(
        {"ask": "nothing"},
        {"ask": "texts", "folder": folder, "ids": list(ids)},
        {"ask": "texts", "folder": folder, "ids": [10**6]},
        {"ask": "texts", "folder": "/nowhere", "ids": []},
        {"ask": "else"},
    )
    assert nothing == {} and "".join(found["texts"]) == text and others == {"texts": None}
    assert gone["missing"] and unknown["missing"]
