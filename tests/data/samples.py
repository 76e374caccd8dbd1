"""The rows of tests/samples, by file, and which format each file is in."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "samples"
FORMAT_OF = {
    "knowlyr_sft_steps": "knowlyr-sft",
    "knowlyr_sft_flat": "knowlyr-sft",
    "knowlyr_dpo": "knowlyr-dpo",
    "knowlyr_grpo": "knowlyr-grpo",
    "roundwise_dpo": "roundwise-dpo",
    "sharegpt": "sharegpt",
    "sharegpt_tools": "sharegpt",
    "sharegpt_preference": "sharegpt",
    "agentinstruct": "sharegpt",
    "openai_tools": "openai",
    "openai_preference": "openai",
    "alpaca": "alpaca",
    "kto": "kto",
    "trl_messages": "trl",
    "trl_prompt_completion": "trl",
    "trl_preference": "trl",
    "trl_preference_implicit": "trl",
    "trl_preference_strings": "trl",
}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


# Every sample row with the name of its format.
SAMPLES = [(format, row) for name, format in FORMAT_OF.items() for row in rows(name)]
