"""An evolution on a GPU: members train in bfloat16 and play with their adapters by name."""

from pathlib import Path

import pytest
import torch

import bough
from tests.commands.letters import WriteLetter
from tests.experiments.small import SETTINGS, pairs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_members_train_and_play_on_a_gpu(tmp_path: Path, method: str):
    settings = {key: value for key, value in SETTINGS.items() if key not in ("model", "test_size", "mutate")}
    data = pairs() if method == "dpo" else None
    found = bough.evolve(
        "tiny", data, method=method, environment=WriteLetter, eval_tasks=8, max_new_tokens=6, temperature=1.0,
        mutate={"learning_rate": "1e-4..1e-2"}, output_dir=tmp_path, **settings,
    )  # fmt: skip
    assert len(found.lineage) == 12 and found.report["untouched"]["tasks"] == 8
    model = bough.load(found.path)
    [folder] = (tmp_path / "rollouts" / "generation-00002-winner").iterdir()
    record = next(one for one in bough.read(folder / "trajectories.jsonl") if isinstance(one, bough.Trajectory))
    call = record.turns[0].call
    assert call is not None and call.logprobs is not None
    [logprobs] = model.policy.logprobs([call])
    assert logprobs.float().cpu().tolist() == pytest.approx(call.logprobs, abs=0.1)  # bfloat16
