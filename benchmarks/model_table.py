"""The table of models in docs/notes/model-table.md: what works with every causal decoder of the installed transformers.

    python benchmarks/model_table.py                 # writes docs/notes/model-table.md (ten minutes on two cores)
    python benchmarks/model_table.py qwen3 mamba2    # print these rows; --write replaces them there

Each model is a miniature with random weights of its class's default config: trained as a
tree or as rows, sampled with the local engine, given an adapter, merged. Each runs in a
process of its own with a time limit, so that one that crashes costs its row alone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bough.config.groups import SamplingConfig
from bough.engines.local.engine import LocalEngine
from bough.errors import BoughError, InputError
from bough.models.gguf_write import FAMILIES as GGUF_FAMILIES
from bough.models.miniature import miniature
from bough.policy.adapters import Lora, add_actor
from bough.policy.load import merged
from bough.policy.policy import Policy
from bough.policy.probe import CALLS, examine
from bough.types import Call

PAGE = Path(__file__).parents[1] / "docs" / "notes" / "model-table.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
TIMEOUT_S = 240
HEAD = (
    "| model type | trained as | local engine | LoRA | merge | GGUF | largest error |\n|---|---|---|---|---|---|---|\n"
)
ROPE = {"rope_type": "default", "rope_theta": 1e4}
QWEN_4 = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 8}
QWEN_4 |= {"indexer_compress_ratio": 4}
# Settings without which a default config cannot be computed.
SETTINGS: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"layer_types": ["full_attention", "sliding_attention"] * 2, "num_hidden_layers": 4}
    | {
        "rope_parameters": dict.fromkeys(
            ("full_attention", "sliding_attention"), ROPE | {"mrope_section": [22, 22, 20]}
        )
    },
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 5e5}, "rope_parameters": ROPE},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp_text": QWEN_4,
    "qwen4_exp": {"text_config": QWEN_4},
    "xlstm": {"return_last_states": False, "hidden_size": 64, "embedding_dim": 64, "num_heads": 4, "num_blocks": 2}
    | {"num_hidden_layers": 2, "chunk_size": 16, "vocab_size": 256},
    "xmod": {"default_language": "en_XX"},
}
# Vision-language models of which the text side is used; those that transformers lists as causal come by themselves.
SEEING = ("llava", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v")
SECTIONS = ROPE | {"mrope_section": [16, 24, 24]}
SETTINGS |= {name: {"text_config": {"rope_parameters": SECTIONS}} for name in ("qwen2_5_vl", "qwen2_vl")}
SETTINGS["glm4v"] = {
    "text_config": {"rope_parameters": SECTIONS | {"mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}}
}


@dataclass(frozen=True)
class Row:
    """What works with a model type; `error` is the largest difference in a log-probability, in nats."""

    model_type: str
    trained: str
    engine: str = ""
    lora: str = ""
    merge: str = ""
    gguf: str = ""
    error: float | None = None

    @classmethod
    def read(cls, line: str) -> Row:
        """The row of a line of the table."""
        *cells, error = (cell.strip() for cell in line.split("|")[1:-1])
        return cls(cells[0].strip("`"), *cells[1:], float(error) if error else None)

    def markdown(self) -> str:
        error = "" if self.error is None else f"{self.error:.0e}"
        cells = (f"`{self.model_type}`", self.trained, self.engine, self.lora, self.merge, self.gguf, error)
        return f"| {' | '.join(cells)} |\n"


def model_types() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    return sorted({*CAUSAL, *SEEING})


def describe(model_type: str) -> Row:
    """The row of a model type, made by trying everything."""
    torch.set_num_threads(1)
    try:
        model = small(model_type)
    except BoughError as error:
        return Row(model_type, f"not tried: {_said(error)}")
    except Exception as error:  # a default config that does not fit together, or a package that is missing
        return Row(model_type, f"not tried: transformers cannot build its default ({_said(error)})")
    try:
        policy = Policy(model).eval()
    except InputError as error:
        return Row(model_type, f"refused: {_reason(str(error))}")
    found = examine(policy)
    errors = [error for path, error in found.errors.items() if path != "tree" or policy.obstacle is None]
    trained = "tree" if policy.obstacle is None else f"rows: {policy.obstacle}"
    engine, engine_error = _engine(policy)
    lora, merge, merge_error = _adapter(policy.base)
    errors += [engine_error, merge_error]
    gguf = "yes" if model_type in GGUF_FAMILIES else "no"
    return Row(model_type, trained, engine, lora, merge, gguf, max(errors))


def small(model_type: str) -> Any:
    """A miniature of the default model of a type."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    auto = AutoModelForImageTextToText if model_type in SEEING else AutoModelForCausalLM
    with torch.device("meta"):
        outline = auto.from_config(config)
    return miniature(outline)


def _engine(policy: Policy) -> tuple[str, float]:
    """Which path of the local engine samples, and how far its log-probabilities are from training's."""
    sampling = SamplingConfig(max_new_tokens=4)
    try:
        engine = LocalEngine.of(policy, threads=1, max_tokens=4_000, max_length=120)
        prompts = [[*CALLS[1].prompt_ids[: 12 + 6 * i], 7 + i] for i in range(3)]

        async def sample() -> list[Any]:
            try:
                return await asyncio.gather(
                    *(engine.generate(f"{i}", p, sampling=sampling, seed=i, stop_ids=[]) for i, p in enumerate(prompts))
                )
            finally:
                await engine.close()

        drawn = asyncio.run(sample())
    except Exception as error:
        return f"no: {_said(error)}", 0.0
    calls = [Call(prompt_ids=p, completion_ids=d.completion_ids) for p, d in zip(prompts, drawn, strict=True)]
    with torch.no_grad():
        own = torch.cat(policy.logprobs(calls, share=False))
    error = float((torch.tensor([value for d in drawn for value in d.logprobs]) - own).abs().max())
    path = getattr(getattr(engine, "path", None), "name", "fast")
    return ("general" if path == "general" else "fast"), error


def _adapter(model: Any) -> tuple[str, str, float]:
    """Whether an adapter on all linear layers is trained, and merged without a change."""
    try:
        model = add_actor(model, Lora(r=2))
        policy = Policy(model)
        torch.cat(policy.logprobs(CALLS)).sum().backward()
        trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        silent = sum(parameter.grad is None for parameter in trained)
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.05)
    except Exception as error:
        return f"no: {_said(error)}", "", 0.0
    lora = "yes" if not silent else f"partly: {silent} of {len(trained)} matrices get no gradient"
    try:
        with torch.no_grad():
            adapted = torch.cat(policy.logprobs(CALLS))
            whole = torch.cat(Policy(merged(model)).logprobs(CALLS))
    except Exception as error:
        return lora, f"no: {_said(error)}", 0.0
    return lora, "yes", float((adapted - whole).abs().max())


def _said(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip().replace("|", "/")
    return f"{text[:90]}" if isinstance(error, BoughError) else f"{type(error).__name__}: {text[:80]}"


def _reason(text: str) -> str:
    for found, short in (
        ("is not a causal", "not causal"),
        ("computes its logits", "its head is not known"),
        ("is computed in a way", "computed in a way that is not known"),
    ):
        if found in text:
            return short
    return text[:90].replace("|", "/")


def _child(model_type: str, answers: Any) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        answers.put(describe(model_type))


class Trial:
    """A model type that is tried in a process of its own."""

    def __init__(self, model_type: str) -> None:
        context = multiprocessing.get_context("fork")  # what is imported here need not be imported 180 times
        self.model_type, self.begin = model_type, time.monotonic()
        self.answers = context.SimpleQueue()
        self.process = context.Process(target=_child, args=(model_type, self.answers))
        self.process.start()

    def row(self) -> Row | None:
        """The row, None as long as it is being made."""
        if not self.answers.empty():
            row: Row = self.answers.get()
            self.process.join()
            return row
        if self.process.is_alive() and time.monotonic() - self.begin < TIMEOUT_S:
            return None
        late = self.process.is_alive()
        self.process.kill()
        self.process.join()
        why = f"it took longer than {TIMEOUT_S} s" if late else f"the process ended with {self.process.exitcode}"
        return Row(self.model_type, f"not tried: {why}")


def tried(types: Iterable[str], jobs: int) -> Iterator[Row]:
    """The rows, in the order in which they are done; `jobs` are made at a time."""
    waiting, running = list(types), list[Trial]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Trial(waiting.pop(0)))
        for trial in list(running):
            if row := trial.row():
                running.remove(trial)
                yield row
        time.sleep(0.05)


def page(rows: list[Row]) -> str:
    """The generated part of docs/notes/model-table.md."""
    import transformers

    works = [row for row in rows if row.error is not None]
    tree = sum(row.trained == "tree" for row in works)
    sampled = sum(not row.engine.startswith("no") for row in works)
    largest = max((row.error for row in works if row.error is not None), default=0.0)
    return (
        f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}: of {len(rows)} model "
        f"types {len(works)} train, {tree} of them as trees, and {sampled} sample; the largest error of a "
        f"log-probability is {largest:.0e} nats.\n\n{HEAD}{''.join(row.markdown() for row in rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="print the rows of these (default: write the page)")
    parser.add_argument("--write", action="store_true", help="replace the rows of these on the page")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # All that is imported on the way is imported before the processes are forked. No gradient: that needs threads.
    policy = Policy(small("gpt2")).eval()
    _engine(policy)
    add_actor(policy.base, Lora(r=2))
    rows = []
    for row in tried(arguments.types or model_types(), arguments.jobs):
        rows.append(row)
        print(row.markdown(), end="", flush=True)
    if arguments.write or not arguments.types:
        write(rows, keep=bool(arguments.types))


def write(rows: list[Row], *, keep: bool) -> None:
    """Writes the table; with `keep`, the rows of other model types stay as they are."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    table = {row.model_type: row for row in map(Row.read, re.findall(r"^\| `.*$", old, re.M)) if keep}
    table |= {row.model_type: row for row in rows}
    PAGE.write_text(f"{before}{BEGIN}{page([table[name] for name in sorted(table)])}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
