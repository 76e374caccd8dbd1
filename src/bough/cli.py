"""The command line: `bough VERB …`. Each verb is a Config and a function; both are imported when it is used.

Exit codes: 0 done, 1 the work failed, 2 the user's input was wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bough.errors import BoughError, InputError, did_you_mean


@dataclass(frozen=True)
class Verb:
    """One command. `config` and `run` are "module:name", resolved only when the verb is called."""

    about: str
    config: str
    run: str
    examples: str = ""


VERBS: dict[str, Verb] = {
    "data stats": Verb(
        "what a data file holds, in numbers",
        "bough.config.data:StatsConfig", "bough.commands.data:stats",
        "  bough data stats sft.jsonl\n  bough data stats trajectories/",
    ),
    "data validate": Verb(
        "name every bad row, as file:line",
        "bough.config.data:ValidateConfig", "bough.commands.data:validate",
        "  bough data validate pairs.jsonl\n  bough data validate pairs.jsonl --format trl",
    ),
    "data convert": Verb(
        "write a data file in another format",
        "bough.config.data:ConvertConfig", "bough.commands.data:convert",
        "  bough data convert sft.jsonl --to trl -o sft-trl.jsonl\n"
        "  bough data convert pairs.parquet --to bough -o pairs.jsonl.zst --on-error skip",
    ),
    "data show": Verb(
        "print records as readable transcripts",
        "bough.config.data:ShowConfig", "bough.commands.data:show",
        "  bough data show sft.jsonl --index 3 --count 2",
    ),
    "data formats": Verb(
        "list the formats that can be read and written",
        "bough.config.data:FormatsConfig", "bough.commands.data:formats",
    ),
    "doctor": Verb(
        "show which tokens of a data file a model would be trained on, and what is wrong with them",
        "bough.config.doctor:DoctorConfig", "bough.commands.doctor:doctor",
        "  bough doctor sft.jsonl --model smollm2\n  bough doctor pairs.jsonl --model Qwen/Qwen3-4B --max-length 2048",
    ),
    "sft": Verb(
        "train on demonstrations",
        "bough.config.training:SFTConfig", "bough.commands.train:sft",
        "  bough sft --train-file sft.jsonl --model smollm2 --output-dir runs/sft\n"
        "  bough sft --config train.yaml --learning-rate 1e-5",
    ),
    "dpo": Verb(
        "train on preference pairs",
        "bough.config.training:DPOConfig", "bough.commands.train:dpo",
        "  bough dpo --train-file pairs.jsonl --model runs/sft/final --beta 0.1 --output-dir runs/dpo",
    ),
    "grpo": Verb(
        "train on groups of attempts",
        "bough.config.training:GRPOConfig", "bough.commands.train:grpo",
        "  bough grpo --train-file groups.jsonl --model runs/dpo/final --output-dir runs/grpo",
    ),
    "eval": Verb(
        "measure a model on held-out files",
        "bough.config.evaluation:EvalConfig", "bough.commands.evaluate:evaluate",
        "  bough eval --model runs/sft/final --eval-file held-out.jsonl",
    ),
    "merge": Verb(
        "write an adapter into its base model",
        "bough.config.merge:MergeConfig", "bough.commands.merge:merge",
        "  bough merge runs/dpo/final -o model",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Threads that wait by spinning make torch several times slower on a CPU that has anything else to do.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        _say("Interrupted.")
        return 130
    except BrokenPipeError:  # `bough data show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BoughError as error:
        if debug:
            raise
        _say(f"Error: {error}")
        return error.exit_code
    except Exception as error:
        if debug:
            raise
        _say(f"Error: unexpected {type(error).__name__}: {error}\nThis is a defect of Bough; --debug shows where.")
        return 1


def _dispatch(arguments: list[str]) -> int:
    words = arguments[: next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))]
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in VERBS:
            return _run(name, arguments[length:])
    if "--version" in arguments and not words:
        print(f"bough {import_module('bough').__version__}")
        return 0
    known = {name.split()[0] for name in VERBS}
    if not words or words[0] in known:
        print(_overview(words[0] if words else ""))
        rest = arguments[1:] if words else arguments
        return 0 if not arguments or {"-h", "--help"} & set(rest) else _unknown_verb(words, rest)
    raise InputError(f"bough {words[0]} is not a command{did_you_mean(words[0], sorted(known))}")


def _unknown_verb(words: list[str], rest: list[str]) -> int:
    if len(words) > 1:
        subverbs = [name.split()[1] for name in VERBS if name.startswith(words[0] + " ")]
        raise InputError(f"bough {words[0]} {words[1]} is not a command{did_you_mean(words[1], subverbs)}")
    raise InputError(
        f"bough needs a command before {rest[0]}" if rest else f"bough {words[0]} needs one of the commands above"
    )


def _run(name: str, arguments: list[str]) -> int:
    from bough.config import flags

    verb = VERBS[name]
    config_class = _resolve(verb.config)
    parser = flags.build(config_class, f"bough {name}", verb.examples)
    if {"-h", "--help"} & set(arguments):
        parser.print_help()
        return 0
    config = flags.parse(config_class, parser, arguments)
    return int(_resolve(verb.run)(config) or 0)


def _overview(first: str) -> str:
    chosen = {name: verb for name, verb in VERBS.items() if not first or name.split()[0] == first}
    width = max(map(len, chosen))
    lines = [f"  {name:<{width}}  {verb.about}" for name, verb in chosen.items()]
    head = [] if first else ["Bough turns an open language model into an agent.", ""]
    tail = ["", "bough COMMAND --help explains a command and shows examples."]
    return "\n".join([*head, f"usage: bough {first or 'COMMAND'} …", "", "commands:", *lines, *tail])


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _say(text: str) -> None:
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[31m{text}\033[0m" if colour else text, file=sys.stderr)
