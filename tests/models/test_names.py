from pathlib import Path

import pytest

from bough.models.resolve import agent_name, folder_digest, model_name


def test_an_agent_is_its_model_its_adapter_and_the_adapters_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    adapter = tmp_path / "runs/sft/final"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(b"one")
    one = agent_name("smollm2", adapter)
    assert one == f"smollm2+runs/sft/final@{folder_digest(adapter)[:8]}"
    assert one == agent_name("smollm2", adapter.relative_to(tmp_path))
    (adapter / "adapter_model.safetensors").write_bytes(b"two")
    assert agent_name("smollm2", adapter) != one, "other weights are another agent"


@pytest.mark.parametrize(
    ("model", "name"),
    [("tiny", "tiny"), ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"), ("runs/a/final", "runs/a/final"), ("/x/y/z", "y/z")],
)
def test_a_model_is_named_without_its_place(model: str, name: str):
    assert agent_name(model, None) == name


def test_a_model_is_named_without_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/sft/final", "other/sft/final"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_text(name)
    names = ["smollm2", "org/name", "runs/sft/final"]
    assert list(map(model_name, names)) == names
    assert model_name(str(tmp_path / "runs/sft/final")) == "runs/sft/final"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    one, two = (model_name(str(tmp_path / name / "sft/final")) for name in ("runs", "other"))
    assert one != two and one.startswith("sft/final@") and str(tmp_path) not in one
