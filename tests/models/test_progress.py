from __future__ import annotations

import logging

from bough.terminal.console import no_bars, steps


def test_off_a_terminal_steps_are_log_lines_and_nothing_is_drawn(caplog, capsys):
    caplog.set_level(logging.INFO, logger="bough.terminal")
    with steps("model", 2) as begin:
        begin("fetch")
        begin("convert")
    assert caplog.messages == ["model: fetch", "model: convert"]
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_each_step_is_drawn_on_stderr_with_its_number(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with steps("model", 2) as begin:
        begin("fetch")
        begin("convert")
    out, err = capsys.readouterr()
    assert out == ""
    assert "model: convert" in err and "1/2" in err


def test_transformers_draws_no_bars_inside_and_as_before_outside():
    from transformers.utils import logging as transformers_logging

    for before in (True, False):
        transformers_logging.enable_progress_bar() if before else transformers_logging.disable_progress_bar()
        with no_bars():
            assert not transformers_logging.is_progress_bar_enabled()
        assert transformers_logging.is_progress_bar_enabled() is before
    transformers_logging.enable_progress_bar()
