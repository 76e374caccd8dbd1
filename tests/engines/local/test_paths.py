"""Which path a model takes, found by trying; and that it gives the log-probabilities of training."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from bough.config.groups import SamplingConfig
from bough.engines.local import paths, reader
from bough.engines.local.reader import free_bytes
from bough.errors import InputError
from bough.policy.policy import Policy
from tests.engines.local.decoders import decoder
from tests.engines.local.playing import play, prompt, run, small_engine
from tests.engines.local.test_general import scored
from tests.policy.families import MIXER, SHAPE

SAMPLING = SamplingConfig(max_new_tokens=3)
# Heads of several sizes, shared keys, ALiBi, learned positions, keys taken apart, recurrent layers, compressed keys,
# rotary positions and attention of the model's own, the decoder of an encoder.
GENERAL = [
    "mimo_v2_flash", "gemma4_shared", "bloom", "mpt", "opt", "falcon", "diffllama", "jetmoe", "mamba",
    "falcon_h1", "nemotron_h", "minicpm3", "biogpt", "codegen", "ctrl", "gemma4_text", "gemma4_unified_text",
    "gpt_neox_japanese", "gptj", "hrm_text", "whisper", "xglm",
]  # fmt: skip
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "depth": 1}
VISION |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
IMAGES = {"image_token_id": 198, "video_token_id": 197, "vision_start_token_id": 196}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
SEEING = {
    "qwen2_5_vl": (
        "Qwen2_5_VLConfig",
        IMAGES | {"text_config": SHAPE | SECTIONS, "vision_config": VISION | {"fullatt_block_indexes": [0]}},
    ),
    "got_ocr2": (  # the model around the decoder keeps its attention
        "GotOcr2Config",
        {"text_config": SHAPE | {"model_type": "qwen2"}, "image_token_index": 198}
        | {"vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}},
    ),
    "qwen3_5": (
        "Qwen3_5Config",
        IMAGES | {"vision_config": VISION}
        | {"text_config": SHAPE | MIXER | {"layer_types": ["linear_attention", "full_attention"]}},
    ),
}  # fmt: skip


def played(policy, **options):
    """Two episodes of two turns; the engine and all calls."""
    engine = small_engine(policy, max_length=120, **options)
    calls = run(engine, *(play(engine, f"{i}", 2, SAMPLING, prompt("system", 33)) for i in range(2)))
    return engine, [call for each in calls for call in each]


@pytest.mark.parametrize("family", GENERAL)
def test_a_model_of_any_kind_samples_what_training_computes(family, caplog):
    policy = Policy(decoder(family)).eval()
    engine, calls = played(policy)
    assert engine.path.name == "general"
    assert scored(policy, calls) < 1e-4
    said = [record.getMessage() for record in caplog.records if record.name == "bough.engines.local.paths"]
    assert len(said) == 1 and f"{type(policy.base).__name__} (" in said[0] and "slower than usual: " in said[0]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt2", "llama4", "gpt_oss"])
def test_a_model_that_our_own_cache_computes_keeps_it(family, caplog):
    assert small_engine(Policy(decoder(family)).eval()).path.name == "ragged"
    assert "slower" not in caplog.text


@pytest.mark.parametrize(("family", "path"), [("qwen2_5_vl", "ragged"), ("got_ocr2", "ragged"), ("qwen3_5", "general")])
def test_the_text_side_of_a_model_that_sees_samples(family, path):
    name, settings = SEEING[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**settings)
    policy = Policy(transformers.AutoModelForImageTextToText.from_config(config)).eval()
    engine, calls = played(policy)
    assert engine.path.name == path
    assert scored(policy, calls) < 1e-4


def test_a_path_that_would_be_wrong_is_not_taken_and_that_is_said_with_numbers(monkeypatch, caplog):
    attend = paths.attend
    monkeypatch.setattr(paths, "attend", lambda *inputs: attend(*inputs[:4], 1.5 * inputs[4]))
    policy = Policy(decoder("llama")).eval()
    engine, calls = played(policy)
    assert engine.path.name == "general"
    assert "its log-probabilities would be wrong by" in caplog.text
    assert scored(policy, calls) < 1e-4


def test_a_layout_that_does_not_fit_is_refused_with_the_reason():
    with pytest.raises(InputError, match="layout='pages' needs a CUDA device"):
        small_engine(Policy(decoder("lfm2")).eval(), layout="pages")


def test_a_sharded_policy_is_refused():
    policy = Policy(decoder("llama")).eval()
    policy.sharded = True
    with pytest.raises(InputError, match="spread over processes"):
        small_engine(policy)


@pytest.mark.parametrize("layout", [None, "general"])
def test_what_training_takes_is_left_free_on_every_path(layout, monkeypatch):
    asked = []
    monkeypatch.setattr(paths, "free_bytes", lambda _device, training: asked.append(training) or 2**24)
    small_engine(Policy.load("tiny").eval(), layout=layout, max_tokens=None, training_bytes=123)
    assert set(asked) == {123}


@pytest.mark.parametrize(("part", "fits"), [(1.0, True), (0.5, False)])
def test_the_weights_are_copied_only_within_this_processs_part_of_a_gpu(part, fits, monkeypatch):
    """All of it would hold them twice, half of it once."""
    policy = SimpleNamespace(device=torch.device("cuda", 0), decoder=nn.Linear(1024, 1024, bias=False), autocast=None)
    policy.base = SimpleNamespace(dtype=torch.float32)
    whole = 2 * policy.decoder.weight.nbytes
    monkeypatch.setattr(paths, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (whole, whole))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: part)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    assert paths._fits_fused(policy) == fits


CPU = torch.device("cpu")
GIB = 1 << 30


AVAILABLE = "MemTotal: 33554432 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB\n"


@pytest.mark.parametrize(
    ("meminfo", "most", "used", "expected"),
    [
        (AVAILABLE, f"{6 * GIB}\n", f"{2 * GIB}\n", 2),  # what the container may still take
        ("MemTotal: 33554432 kB\nMemAvailable: 1048576 kB\n", f"{6 * GIB}\n", f"{2 * GIB}\n", 0.5),
        (AVAILABLE, "max\n", f"{2 * GIB}\n", 4),  # no limit: what is available counts
        (AVAILABLE, None, None, 4),
        (AVAILABLE, f"{6 * GIB}\n", f"{7 * GIB}\n", 0),
        (None, None, None, 4),  # a machine that does not say is taken for a laptop with 8 GiB
    ],
)
def test_half_of_what_is_free_is_used(tmp_path, monkeypatch, meminfo, most, used, expected):
    monkeypatch.setattr(reader, "Path", lambda path: tmp_path / path.lstrip("/"))
    files = {"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": most, "sys/fs/cgroup/memory.current": used}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    assert free_bytes(CPU) == expected * GIB


@pytest.mark.parametrize(
    ("fraction", "reserved", "training", "expected"),
    [(1.0, 0, 0, 85), (0.5, 0, 0, 59.5), (0.5, 30, 0, 34), (0.1, 30, 0, 0), (1.0, 0, 40, 51), (1.0, 0, 90, 25.5)],
)
def test_of_a_gpu_most_is_taken_that_training_leaves_and_no_more_than_this_process_may_have(
    monkeypatch, fraction, reserved, training, expected
):
    """Of 100 GiB free of 140. Workers of a cluster that share it have a fraction each; episodes have 30% at least."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: fraction)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved * GIB)
    assert free_bytes(torch.device("cuda"), training * GIB) == pytest.approx(expected * GIB)
