"""The plots of the documentation show the committed numbers."""

from benchmarks import plots

from tests.blocks import ROOT


def test_committed_plots_are_those_that_the_script_makes():
    made = plots.plots()
    folder = ROOT / "docs" / "plots"
    assert {path.name for path in folder.iterdir()} == set(made)
    assert [name for name, text in made.items() if (folder / name).read_text() != text] == []


def test_numbers_are_read_from_the_results():
    table = "\nevaluation  success\n05-after-sft   51.9%    42.5% – 61.0%  108  01-base\n```\n"
    assert plots.rates(table + table.replace("51.9", "0.0")) == [plots.Rate("after-sft", 51.9, 42.5, 61.0, 108)]
    assert plots.held_out_curve("| 1 | 53.3% | 120 | 58% |\n| 2 |  | 128 | 55% |\n| 5 | 61.7% | 96 |") == [
        (1, 53.3),
        (5, 61.7),
    ]
    assert [ratio for _, ratio in plots.speeds()] == [49.8, 36.1, 23.9, 23.5, 5.8, 3.6, 1.92, 1.73, 1.41, 1.34]
