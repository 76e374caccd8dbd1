from pathlib import Path

import pytest

from bough.chat.template import CallBuilder, load_template
from bough.data.reader import read
from bough.data.writer import Writer
from bough.errors import InputError
from bough.ledger import Ledger
from bough.methods.dpo import DPO, DPOConfig
from bough.methods.sft import SFT, SFTConfig
from bough.training.method import count_calls

EXAMPLES = Path(__file__).parents[2] / "examples"
BUILDER = CallBuilder(load_template("tiny"))


def test_records_in_memory_give_the_examples_of_the_same_records_on_file(tmp_path: Path):
    records = list(read(EXAMPLES / "household-pairs.jsonl"))[:3]
    with Writer(tmp_path / "pairs.jsonl") as writer:
        for record in records:
            writer.write(record)
    method = DPO(DPOConfig(train_file="unused"))
    on_file = method.examples(tmp_path / "pairs.jsonl", BUILDER)
    in_memory = method.examples(iter(records), BUILDER)
    assert [example.calls for example in in_memory.examples] == [example.calls for example in on_file.examples]
    assert in_memory.digest == on_file.digest and in_memory.rows.to_json() == on_file.rows.to_json()
    assert [example.place for example in in_memory.examples] == ["records:1", "records:2", "records:3"]
    assert method.examples(str(tmp_path / "pairs.jsonl"), BUILDER).digest == on_file.digest, "a path may be text"
    assert method.examples(records[:2], BUILDER).digest != on_file.digest


def test_a_record_of_another_kind_is_named_by_its_number():
    trajectory, pair = (
        next(iter(read(EXAMPLES / "household.jsonl"))),
        next(iter(read(EXAMPLES / "household-pairs.jsonl"))),
    )
    with pytest.raises(InputError) as error:
        SFT(SFTConfig(train_file="unused")).examples([trajectory, pair], BUILDER)
    assert error.value.problems == ["records:2: this is a pair; SFT learns from trajectories (see bough demos --help)"]
    kept = SFT(SFTConfig(train_file="unused", on_error="skip")).examples([trajectory, pair], BUILDER)
    assert kept.rows.kept == 1 and kept.rows.dropped == {"wrong_kind": 1}


def test_rows_with_the_same_problem_are_one_line():
    trajectory = next(iter(read(EXAMPLES / "household.jsonl")))
    with pytest.raises(InputError, match=r"records has 3 bad rows \(drop with --on-error skip\)") as error:
        DPO(DPOConfig(train_file="unused")).examples([trajectory] * 3, BUILDER)
    said = "this is a trajectory; DPO learns from pairs (see bough pairs --help)"
    said += "; bough dpo --loss-type kto learns from single trajectories"
    assert error.value.problems == [f"records:1: {said} (3 rows, also records:2, records:3)"]


def test_no_records_at_all_are_an_error():
    with pytest.raises(InputError, match="records: no row can be trained on"):
        SFT(SFTConfig(train_file="unused")).examples([], BUILDER)


def test_calls_of_a_row_that_are_not_trained_have_a_reason():
    of_row, ledger = Ledger("calls"), Ledger("calls")
    of_row.keep(3)
    of_row.drop("too_long")
    count_calls(ledger, of_row, 1, "no_weight")
    assert (ledger.kept, dict(ledger.dropped)) == (1, {"too_long": 1, "no_weight": 2})
