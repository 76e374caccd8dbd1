"""vLLM on the episodes of `rollouts.py`, in a process of its own: prefix caching on, all episodes of a turn at once.

    python benchmarks/vllm_rollouts.py WORK.json     # as `rollouts.py --vllm` calls it

The file names a model's folder and has the scripts. The last line printed is JSON: the tokens drawn and the
seconds, of the second time that all episodes were played; the first compiles and records.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def play(llm: Any, wishes: Any, scripts: list[tuple[list[int], list[list[int]]]]) -> int:
    """Plays all episodes to the end; how many tokens were drawn."""
    histories = [list(start) for start, _ in scripts]
    drawn = 0
    for t in range(len(scripts[0][1])):
        answers = llm.generate([{"prompt_token_ids": history} for history in histories], wishes, use_tqdm=False)
        for history, answer, (_, observations) in zip(histories, answers, scripts, strict=True):
            ids = list(answer.outputs[0].token_ids)
            drawn += len(ids)
            history += ids + observations[t]
    return drawn


def main() -> None:
    os.environ.update(SETTINGS)
    from vllm import LLM, SamplingParams, __version__

    work = json.loads(Path(sys.argv[1]).read_text())
    begin = time.perf_counter()
    llm = LLM(
        work["model"],
        load_format=work["load_format"],
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        max_num_seqs=len(work["scripts"]),
        max_model_len=work["length"],
        gpu_memory_utilization=0.5,
        max_logprobs=1,
    )
    wishes = SamplingParams(
        temperature=1.0, max_tokens=work["answer"], ignore_eos=True, detokenize=False, logprobs=0
    )  # with the log-probability of the drawn token, as training needs it
    play(llm, wishes, work["scripts"])
    ready = time.perf_counter() - begin
    times = []
    for _ in range(2):
        llm.reset_prefix_cache()
        begin = time.perf_counter()
        drawn = play(llm, wishes, work["scripts"])
        times.append(time.perf_counter() - begin)
    print(json.dumps({"version": __version__, "tokens": drawn, "seconds": min(times), "ready": ready}))


if __name__ == "__main__":
    main()
