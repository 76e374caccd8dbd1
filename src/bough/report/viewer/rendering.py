"""The part of the viewer that a folder's own models could break, as a program of its own.

A chat template is a program and may have no end; a tokenizer may be made to fill the
memory. Both run here, in a process that has little of either. Each line of the input is a
question, each line of the output its answer:

    {"folder": "…", "ids": […]}                  → {"texts": […] or null}
    {"folder": "…", "record": {…}, "turn": 3}    → {"call": {…} or null}

An answer may also be {"missing": "why there is none"}.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

# A vocabulary of 260,000 tokens takes a quarter of this.
MAX_MEMORY = 1 << 30
MAX_CPU_S = 10
MAX_TOKEN_TEXT = 1000


def main() -> None:
    """Answers until the input ends."""
    # transformers would load torch with a tokenizer, which has no use for it: two thirds of the time and the memory.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    for line in sys.stdin:
        _limit(600, MAX_MEMORY * 8)  # for loading the libraries
        question = json.loads(line)
        try:
            answer = _texts(**question) if "ids" in question else _call(**question)
        except MemoryError:
            raise  # like a process killed at its limits: not asked again
        except Exception as error:  # tokenizers raises plain Exceptions
            answer = {"missing": f"it cannot be read: {str(error) or type(error).__name__}".partition("\n")[0]}
        print(json.dumps(answer), flush=True)


def _limit(cpu_s: int = MAX_CPU_S, memory: int = MAX_MEMORY) -> None:
    """At most so much time and memory beyond what is taken now."""
    with contextlib.suppress(OSError, ValueError):  # a system that has no such limit
        used = resource.getrusage(resource.RUSAGE_SELF)
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + cpu_s, most))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, most))


def _texts(folder: str, ids: list[int]) -> dict[str, Any]:
    """Every token's own text. A character that consists of several tokens is shown at the last of them."""
    _limit()
    tokenizer = _tokenizer(folder)
    if any(token >= tokenizer.get_vocab_size() for token in ids):
        return {"texts": None}  # another model's
    texts, pending = list[str](), list[int]()
    for token in ids:
        pending.append(token)
        text = tokenizer.decode(pending, skip_special_tokens=False)
        if text.endswith("�") and len(pending) < 4:
            texts.append("")
            continue
        texts.append(text[:MAX_TOKEN_TEXT])
        pending = []
    return {"texts": texts}


@lru_cache(maxsize=1)
def _tokenizer(folder: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


@lru_cache(maxsize=1)
def _template(folder: str) -> Any:
    from bough.chat.template import load_template

    return load_template(folder)


def _call(folder: str, record: dict[str, Any], turn: int) -> dict[str, Any]:
    """The call that training would make of a turn."""
    from bough.models.tiny import postpone_scikit_learn

    postpone_scikit_learn()
    import transformers
    from transformers import AutoTokenizer  # noqa: F401  a lazy module: it loads what is asked for

    from bough.chat.template import CallBuilder
    from bough.types import Trajectory

    transformers.logging.set_verbosity_error()
    trajectory = Trajectory.model_validate(record)
    _limit()
    builder = CallBuilder(_template(folder))
    for built in builder.build(trajectory.start, trajectory.turns[: turn + 1], trajectory.tools):
        if built.turn == turn and built.call is not None:
            return {"call": built.call.model_dump(mode="json")}
    return {"call": None}


if __name__ == "__main__":
    main()
