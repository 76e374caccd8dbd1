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
    assert plots.rates(table + table.replace("51.9", "0.0")) == [plots.Rate("after-sft", 51.9, 42.5, 61.0)]
    assert plots.held_out_curve("| 1 | 53.3% | 120 | 58% |\n| 2 |  | 128 | 55% |\n| 5 | 61.7% | 96 |") == [
        (1, 53.3),
        (5, 61.7),
    ]
    assert [ratio for _, ratio in plots.speeds()] == [49.8, 36.1, 23.9, 23.5, 5.8, 3.6, 1.92, 1.73, 1.41, 1.34]


def test_an_experiment_has_a_row_for_each_model_that_played_the_evaluation():
    table = (
        "| evaluation | model | success | by seed, % | episodes |\n| --- | --- | --- | --- | --- |\n"
        "| seen | sft | 98.1% (90.0–99.7) | 96.4 99.3 | 420, 1 lost |\n"
        "| unseen | sft | 97.8% (93.0–99.3) | 97.8 96.7 | 540 |\n"
        "| seen | corrected-round-2 | unknown |  | 0 |\n"
    )
    assert plots.experiment_rates(table, "seen") == [plots.Rate("sft", 98.1, 90.0, 99.7)]


def test_a_sweep_has_a_row_for_each_value_of_its_setting():
    success = (
        "\n| kinds | evaluation | success | 95% interval | by seed, % |\n| --- | --- | --- | --- | --- |\n"
        "| all | 01-base | 0.0% | 0.0% – 3.0% | 0.0 |\n| all | 05-after-sft | 43.0% | 34.6% – 51.8% | 42.0 |\n"
        "| [a, b] | 09-after-dpo | 55.2% | 21.2% – 84.9% | 65.5 |\n\n"
        "| other | 09-after-dpo | 1.0% | 0.0% – 2.0% | 1.0 |\n"
    )
    assert plots.sweep_rates(success, "kinds") == [
        plots.Rate("after SFT", 43.0, 34.6, 51.8),
        plots.Rate("[a, b]", 55.2, 21.2, 84.9),
    ]
    gains = "\n| β | gain by seed | mean |\n| --- | --- | --- |\n| 0.05 | +34.5 -9.5 | +12.5 (-8.2 to +56.2) |\n"
    assert plots.sweep_rates(gains, "β") == [plots.Rate("0.05", 12.5, -8.2, 56.2)]
