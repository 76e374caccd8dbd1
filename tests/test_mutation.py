"""The mutation run knows today's modules and tests."""

import pytest
from benchmarks.equivalent_mutants import EQUIVALENT
from benchmarks.mutation import MODULES, known_mutants
from benchmarks.mutation_trials import ROOT


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_mutants_and_tests_that_exist(module):
    assert known_mutants(module)
    for name in MODULES[module]:
        path, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / path).read_text()


def test_equivalent_mutants_are_known_mutants():
    known = {mutant.changed_line for module in MODULES for mutant in known_mutants(module)}
    assert EQUIVALENT.keys() - known == set(), "these lines have changed: look at them again"
