from pathlib import Path

import pytest
import torch
import transformers
from gguf import GGUFReader, LlamaFileType
from packaging.version import Version
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import bough
from bough.cli import main
from bough.models.resolve import load_tokenizer
from bough.policy.adapters import Lora
from bough.policy.load import save_policy
from bough.policy.policy import Policy
from tests.blocks import ROOT

IDS = torch.tensor([[5, 6, 7, 8]])


def save_adapter(base: str, folder: Path) -> Policy:
    policy = Policy.load(base, lora=Lora(r=4)).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    save_policy(policy, load_tokenizer(base), folder)
    return policy


def test_a_merged_model_is_plain_and_computes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = save_adapter("tiny", tmp_path / "adapter")
    command = ["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model")]
    assert main(command) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.allclose(merged(IDS).logits, policy.base(IDS).logits, atol=1e-4)
    assert load_tokenizer(str(tmp_path / "model")).chat_template
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err


# What is wrong there is the reading, not the file.
@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.19"),
    reason="transformers before 5.19 reads the tokenizer of a GGUF file wrongly",
)
def test_a_merged_gguf_file_computes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    policy = save_adapter("tiny", tmp_path / "adapter")
    command = ["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "new" / "model.gguf"), "--gguf-type", "f32"]
    assert main(command) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.gguf"]
    source = {"pretrained_model_name_or_path": tmp_path / "new", "gguf_file": "model.gguf"}
    merged = AutoModelForCausalLM.from_pretrained(**source, quantization_config=GgufConfig(dequantize=True))
    assert torch.allclose(merged(IDS).logits, policy.base(IDS).logits, atol=1e-4)
    assert AutoTokenizer.from_pretrained(**source).chat_template == load_tokenizer("tiny").chat_template
    assert main(command) == 2
    assert "exists; give another file" in capsys.readouterr().err


def test_a_gguf_file_is_f16_unless_told_otherwise(tmp_path: Path):
    save_adapter("tiny", tmp_path / "adapter")
    assert main(["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model.gguf")]) == 0
    reader = GGUFReader(tmp_path / "model.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) == 2} == {"F16"}
    assert reader.fields["general.file_type"].contents() == LlamaFileType.MOSTLY_F16


def test_a_gguf_type_without_a_gguf_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model"), "--gguf-type", "f16"]) == 2
    assert "--gguf-type needs an --output that ends in .gguf" in capsys.readouterr().err


def test_a_family_that_gguf_cannot_hold_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_adapter("tiny-gemma", tmp_path / "adapter")
    assert main(["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model.gguf")]) == 2
    assert "family gemma3_text; allowed: llama, qwen2, qwen3" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_config.json", b"{", "adapter_config.json: cannot be read"),
        ("adapter_config.json", b"[]", "does not say which model it is for"),
        (
            "adapter_config.json",
            b'{"base_model_name_or_path": "tiny", "peft_type": "LORA", "r": "x"}',
            "cannot be loaded",
        ),
        ("adapter_model.safetensors", b"\xff" * 100, "the adapter cannot be loaded: SafetensorError"),
    ],
)
def test_a_damaged_adapter_is_named(
    tmp_path: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
):
    save_adapter("tiny", tmp_path / "adapter")
    (tmp_path / "adapter" / name).write_bytes(content)
    assert main(["merge", str(tmp_path / "adapter"), "-o", str(tmp_path / "model")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "model").exists()


PAIRS = ROOT / "examples" / "household-pairs.jsonl"


def test_a_trained_adapter_is_merged_and_gets_a_card(tmp_path: Path):
    trained = bough.dpo("tiny", PAIRS, output_dir=tmp_path / "run", max_steps=1, max_length=256)
    model = bough.merge(trained, tmp_path / "model")
    assert model == tmp_path / "model" and (model / "model.safetensors").is_file()
    with pytest.raises(bough.InputError, match="exists"):
        bough.merge(trained, tmp_path / "model")
    card = bough.card(trained, license="mit")
    assert card.path == trained.path / "README.md" and card.path.read_text() == card.text and "mit" in card.text
    with pytest.raises(bough.InputError, match="exists"):
        bough.card(trained)
