from pathlib import Path

from bough.config.run_folder import MetricsFile


def test_lines_behind_the_step_that_is_resumed_are_forgotten(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, 0)
    for step in range(1, 5):
        first.append({"step": step, "loss": step / 2})
    MetricsFile(path, 2).append({"step": 3, "loss": 9.0})
    assert [(line["step"], line["loss"]) for line in MetricsFile.read(path)] == [(1, 0.5), (2, 1.0), (3, 9.0)]


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert MetricsFile.read(path) == [{"step": 1}]
    assert MetricsFile.read(tmp_path / "none") == []


def test_what_is_not_a_steps_line_is_skipped(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n3\n[]\n{}\n{"step": "2"}\n\xff\xfe\n{"step": true}\n{"step": 2}\n')
    with path.open("a") as file:
        file.write('{"step": 3, "a": ' + "[" * 200_000 + "\n" + '{"step": 1' + "0" * 400 + "}\n" + '{"step": 4}\n')
    assert MetricsFile.read(path) == [{"step": 1}, {"step": 2}, {"step": 4}]
    MetricsFile(path, 1).append({"step": 2})
    assert MetricsFile.read(path) == [{"step": 1}, {"step": 2}]


def test_numbers_that_are_not_finite_become_null(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl", 0)
    file.append({"step": 1, "loss": float("nan")})
    assert MetricsFile.read(file.path) == [{"step": 1, "loss": None}]
