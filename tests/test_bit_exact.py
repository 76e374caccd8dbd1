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
from bough.bit_exact import STRICT, VARIABLE, changed_by_address, changed_by_rows
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


def product(rows: Tensor, weight: Tensor) -> Tensor:
    return rows @ weight.T


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
    with bit_exact._one_thread(onednn=False):
        assert torch.get_num_threads() == 1 and not torch.backends.mkldnn.enabled
        assert changed_by_rows(product) == []
        assert changed_by_address(product) == []
    assert torch.backends.mkldnn.enabled == before


def rounds_by_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """As MKL does by default: from 16 rows on, sums go in another order."""
    return product(rows, weight) if len(rows) < 16 else rows.flip(1) @ weight.flip(1).T


def rounds_by_address(rows: Tensor, weight: Tensor) -> Tensor:
    return product(rows, weight) if rows.data_ptr() % 64 == 0 else rows.flip(1) @ weight.flip(1).T


def test_a_product_that_depends_on_the_number_of_rows_is_found():
    found = changed_by_rows(rounds_by_rows)
    assert (1536, 576) in found and (576, 576) in found


def test_a_product_that_depends_on_its_address_is_found():
    assert (1536, 576) in changed_by_address(rounds_by_address)


def test_a_single_changed_bit_at_the_end_of_a_batch_is_found():
    def multiply(rows: Tensor, weight: Tensor) -> Tensor:
        result = product(rows, weight)
        if len(rows) == 33 and weight.shape == (16, 576):
            result[-1, -1] = result[-1, -1].nextafter(torch.tensor(torch.inf))
        return result

    with bit_exact._one_thread(onednn=False):
        assert changed_by_rows(multiply) == [(576, 16)]


@pytest.mark.parametrize(
    ("value", "mkl", "remedy"),
    [
        (None, True, "Call bough.bit_exact.prepare() before torch loads, or set MKL_CBWR=AUTO,STRICT before Python"),
        ("COMPATIBLE", True, "MKL_CBWR is set to COMPATIBLE: set it to AUTO,STRICT, or leave it unset."),
        (STRICT, True, "MKL_CBWR=AUTO,STRICT did not prevent it"),
        (None, False, "No setting is known that prevents it"),
    ],
)
def test_the_engine_says_once_that_the_batch_matters_and_what_to_do(
    value: str | None,
    mkl: bool,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(bit_exact, "_product", rounds_by_rows)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.delenv(VARIABLE)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    policy = Policy.load("tiny", device="cpu").eval()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            run(small_engine(policy))
    (record,) = caplog.records
    assert "the tokens drawn for an episode may change with what else is in the batch" in record.getMessage()
    assert remedy in record.getMessage() and "1536×576" in record.getMessage()


def test_where_all_is_well_nothing_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bit_exact, "_product", product)
    with caplog.at_level(logging.DEBUG, "bough"):
        run(small_engine(Policy.load("tiny", device="cpu").eval()))
        bit_exact.warn_if_runs_differ()
    assert [record for record in caplog.records if record.name == "bough.bit_exact"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [({}, 1), ({"dtype": torch.bfloat16}, 0), ({"layout": "rows"}, 0)],
    ids=["float32", "bf16", "rows"],
)
def test_only_an_engine_that_promises_it_is_checked(
    options: dict[str, Any], said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(bit_exact, "_product", rounds_by_rows)
    dtype = options.pop("dtype", torch.float32)
    with caplog.at_level(logging.WARNING):
        run(small_engine(Policy.load("tiny", device="cpu", dtype=dtype).eval(), **options))
    assert len(caplog.records) == said
