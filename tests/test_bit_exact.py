import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bough import bit_exact
from bough.bit_exact import STRICT, VARIABLE, product
from bough.policy.policy import Policy
from tests.engines.local.playing import run, small_engine

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _forgets():
    checks = (bit_exact.batches_differ, bit_exact.warn_if_batches_differ, bit_exact.warn_if_runs_differ)
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


def told(code: str, **variables: str) -> Any:
    """What a fresh Python prints as JSON; it has our variable only where it is given."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SAY = f"import json, os, sys; print(json.dumps([os.environ.get({VARIABLE!r}), 'torch' in sys.modules]))"


def test_child_processes_inherit_it():
    code = f"""
import subprocess, sys
from bough import bit_exact
bit_exact.prepare()
subprocess.run([sys.executable, '-c', {SAY!r}], check=True)"""
    assert told(code) == [STRICT, False]


def test_the_command_line_runs_with_it(tmp_path: Path):
    """`python -m bough` imports a user's environment, which can see what is set."""
    note = f"import pathlib, os\npathlib.Path('seen').write_text(os.environ[{VARIABLE!r}])\n"
    (tmp_path / "world.py").write_text(note)
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "bough", "env", "check", "world.py:World"]
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (tmp_path / "seen").read_text() == STRICT


def test_a_users_own_value_is_kept():
    code = f"from bough import bit_exact; bit_exact.prepare(); {SAY}"
    assert told(code, **{VARIABLE: "COMPATIBLE"}) == ["COMPATIBLE", False]


@pytest.mark.parametrize("first", ["", "import torch"])
def test_a_program_that_imports_bough_is_left_alone(first: str):
    """Its environment stays as it was, and Bough works; where that costs bits, the engine says so."""
    code = f"""
import json, logging, os
{first}
before = dict(os.environ)
import bough
bough.Policy
os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch's own
before.pop("TORCHINDUCTOR_CACHE_DIR", None)
unchanged = dict(os.environ) == before
from bough.bit_exact import batches_differ, warn_if_batches_differ
said = []
logging.getLogger("bough.bit_exact").addFilter(lambda record: said.append(record.getMessage()))
warn_if_batches_differ()
print(json.dumps([unchanged, bool(batches_differ()), said]))
"""
    unchanged, differ, said = told(code)
    assert unchanged
    assert len(said) == differ
    assert all("Call bough.bit_exact.prepare() before torch loads" in sentence for sentence in said)


@pytest.mark.bit_exact
def test_these_tests_run_with_it():
    assert os.environ[VARIABLE] == STRICT
    before = torch.backends.mkldnn.enabled
    with bit_exact.without_onednn():
        with bit_exact.without_onednn():
            assert not torch.backends.mkldnn.enabled
        assert not torch.backends.mkldnn.enabled, "the last to leave switches it on"
        assert bit_exact.changed(bit_exact.same_anywhere) == []
    assert torch.backends.mkldnn.enabled == before and bit_exact.batches_differ() == []


def rounds_by_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """As MKL does by default: from 16 rows on, sums go in another order."""
    return product(rows, weight) if len(rows) < 16 else rows.flip(1) @ weight.flip(1).T


def rounds_by_address(rows: Tensor, weight: Tensor) -> Tensor:
    return product(rows, weight) if rows.data_ptr() % 64 == 0 else rows.flip(1) @ weight.flip(1).T


def test_a_product_that_depends_on_its_address_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bit_exact, "product", rounds_by_address)
    assert "1536×576" in bit_exact.changed(bit_exact.same_anywhere)


def test_a_single_changed_bit_at_the_end_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch):
    def multiply(rows: Tensor, weight: Tensor) -> Tensor:
        result = product(rows, weight)
        if len(rows) == 33 and weight.shape == (16, 576):
            result[-1, -1] = result[-1, -1].nextafter(torch.tensor(torch.inf))
        return result

    monkeypatch.setattr(bit_exact, "product", multiply)
    assert bit_exact.batches_differ() == ["576×16"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, 1), ({"dtype": torch.bfloat16}, 0), ({"layout": "general"}, 0)],
    ids=["float32", "bf16", "general"],
)
def test_an_engine_that_promises_it_says_once_that_the_batch_matters(
    options: dict[str, Any], said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(bit_exact, "product", rounds_by_rows)
    dtype = options.pop("dtype", torch.float32)
    policy = Policy.load("tiny", device="cpu", dtype=dtype).eval()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            run(small_engine(policy, **options))
    assert len(caplog.records) == said
    for record in caplog.records:
        assert "may change with what else is in the batch" in record.getMessage()
        assert "1536×576" in record.getMessage() and f"set {VARIABLE}={STRICT} before Python" in record.getMessage()
