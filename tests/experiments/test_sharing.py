from pathlib import Path

from bough.experiments.record import StageRecord
from bough.experiments.sweep import Sweep
from tests.experiments.counting import configured

GATED = """\
name: gated
model: expert
stages:
  - eval: {name: before, tasks: 2}
  - eval: {name: between, tasks: 2, gate: {alpha: 0.05}}
  - collect: {tasks: 2}
  - eval: {name: after, tasks: 2}
"""


def shared(sweep: Sweep) -> list[list[bool]]:
    return [[source is not None for _, source in stages] for _, stages in sweep.plan()]


def test_stages_after_a_gate_that_may_decide_otherwise_are_not_the_same(tmp_path: Path):
    for vary in ("between.gate.alpha=0.01,0.1", "between.gate.by_type=false,true"):
        found = shared(configured(tmp_path, vary, seeds=1, recipe=GATED))
        assert found == [[False] * 4, [True, True, False, False]], vary
    # The same gate on the same evaluation decides the same.
    assert shared(configured(tmp_path, "after.max_turns=1,2", seeds=1, recipe=GATED))[1] == [True, True, True, False]


def test_stages_are_planned_as_the_same_exactly_where_they_are(tmp_path: Path):
    sweep = configured(tmp_path, "before.max_turns=1,3", "after.max_turns=2,4", seeds=1)
    sweep.play(lambda _: None)
    found = set()
    for run, stages in zip(sweep.runs, sweep.stamps, strict=True):
        for stage, stamp in stages:
            record = StageRecord.read(run.folder / stage.folder)
            assert record is not None
            found.add((stamp, record.fingerprint))
    # `played` and `demos` once, `before` and `after` in two forms each.
    assert len(found) == len({stamp for stamp, _ in found}) == len({made for _, made in found}) == 6
