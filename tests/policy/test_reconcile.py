import json
from pathlib import Path

import pytest
import torch

from bough.errors import InputError
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora, grow, read_shape
from bough.policy.load import load_model
from bough.policy.policy import Policy
from bough.policy.save import save_policy
from bough.types import Call

CALLS = [Call(prompt_ids=[5, 6, 7, 9], completion_ids=[8, 11, 2])]


def adapter(folder: Path, lora: Lora) -> Policy:
    torch.manual_seed(1)
    policy = Policy.load("tiny", lora=lora).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    save_policy(policy, load_tokenizer("tiny"), folder)
    return policy


def grown(folder: Path, wanted: Lora) -> Policy:
    model = load_model("tiny", dtype=torch.float32, device=torch.device("cpu"), quantize=False)
    return Policy(grow(model, folder, wanted)).eval()


@pytest.mark.parametrize(
    "wanted",
    [
        Lora(r=16, alpha=8, targets=("k_proj", "q_proj")),
        Lora(r=2, alpha=64, targets=("q_proj", "v_proj")),
        Lora(r=8, alpha=16, targets="all-linear"),
    ],
)
def test_a_grown_adapter_computes_the_same_and_can_be_trained(tmp_path: Path, wanted: Lora):
    small = adapter(tmp_path, Lora(r=4, alpha=12, targets=("q_proj", "v_proj")))
    large = grown(tmp_path, wanted)
    assert torch.allclose(large.logprobs(CALLS)[0], small.logprobs(CALLS)[0], atol=1e-5)
    config = large.model.peft_config["actor"]
    assert config.r == max(4, wanted.r)
    large.logprobs(CALLS)[0].sum().backward()
    new_columns = [p.grad[:, 4:] for n, p in large.named_parameters() if "lora_B" in n and p.grad is not None]
    assert all(column.abs().sum() > 0 for column in new_columns if column.numel())


def test_the_shape_of_an_adapter_is_read_from_its_folder(tmp_path: Path):
    adapter(tmp_path, Lora(r=4, alpha=12, dropout=0.1, targets=("v_proj", "q_proj")))
    assert read_shape(tmp_path) == Lora(r=4, alpha=12, dropout=0.1, targets=("q_proj", "v_proj"))


def test_what_cannot_be_grown_is_said(tmp_path: Path):
    adapter(tmp_path, Lora(r=4, targets=("q_proj",)))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(InputError, match="use_dora cannot be grown"):
        grown(tmp_path, Lora(r=8))
    with pytest.raises(InputError, match=r"adapter_config\.json is missing"):
        read_shape(tmp_path / "none")
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_shape(tmp_path)
    path.write_text('{"peft_type": "IA3"}')
    with pytest.raises(InputError, match="IA3 adapter"):
        read_shape(tmp_path)
