"""The mutation run knows today's modules, and each of its mutants is one change to one of them."""

import ast

import pytest
from benchmarks.equivalent_mutants import EQUIVALENT
from benchmarks.mutants import mutants
from benchmarks.mutation import MODULES, known_mutants, report
from benchmarks.mutation_trials import ROOT, Trial


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_mutants_and_tests_that_exist(module):
    assert known_mutants(module)
    for name in MODULES[module]:
        path, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / path).read_text()


def test_equivalent_mutants_are_known_mutants():
    known = {mutant.changed_line for module in MODULES for mutant in known_mutants(module)}
    assert EQUIVALENT.keys() - known == set(), "these lines have changed: look at them again"


def test_a_mutant_is_one_change():
    source = """
if TYPE_CHECKING:
    import torch
x: float = Field(1.0, ge=0)
def f(x):
    \'\'\'1 + 1\'\'\'
    assert x != 3
    return [min(x, 2) for x, _ in zip(x, x, strict=True)]
"""
    found = mutants(source)
    assert [(str(mutant), mutant.changed_line) for mutant in found] == [
        ("`min(x, 2)` → `max(x, 2)`", "return [(max(x, 2)) for x, _ in zip(x, x, strict=True)]"),
        ("`2` → `3`", "return [min(x, (3)) for x, _ in zip(x, x, strict=True)]"),
        ("`2` → `1`", "return [min(x, (1)) for x, _ in zip(x, x, strict=True)]"),
    ]
    assert all(ast.parse(mutant.source) for mutant in found)


def test_the_score_leaves_out_what_computes_the_same_and_what_was_not_tried():
    mutant = known_mutants("methods/kto")[0]
    fates = ["killed", "timed out", "timed out", "survived", "equivalent", "not tried"]
    lines = list(report([Trial("methods/kto", [], mutant, fate=fate) for fate in fates], "the command"))
    assert "**3 of 4 mutants are killed (75%)**, 1 survive; 1 more" in lines[2]
    assert lines[6].endswith("| 1 | 2 | 1 | 1 | 1 |")
