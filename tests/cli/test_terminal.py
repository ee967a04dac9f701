"""What a person sees: frames and bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from mirage_kernels.generator import terminal as module
from mirage_kernels.generator.pipeline import Event
from mirage_kernels.generator.terminal import Terminal

ROWS = [{"kernel": "rms_norm_linear [M, K]", "us": "13.6"}, {"kernel": "gqa", "us": "8"}]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_screen() -> Terminal:
    return Terminal(out=Screen(), err=Screen())


def in_file(*, as_json: bool = False) -> Terminal:
    return Terminal(as_json, out=io.StringIO(), err=io.StringIO())


def written(terminal: Terminal) -> tuple[str, str]:
    assert isinstance(terminal.out, io.StringIO)
    assert isinstance(terminal.err, io.StringIO)
    return terminal.out.getvalue(), terminal.err.getvalue()


def test_table_in_a_file_is_aligned_lines() -> None:
    terminal = in_file()
    terminal.table(ROWS, left=1)
    assert written(terminal)[0].splitlines() == [
        "kernel                    us",
        "rms_norm_linear [M, K]  13.6",
        "gqa                        8",
    ]


def test_a_column_that_no_row_fills_is_left_away_and_a_row_may_lack_a_cell() -> None:
    terminal = in_file()
    terminal.table([{"job": "a", "from": "", "us": "1"}, {"job": "b"}], left=2)
    terminal.table([], left=1)
    assert written(terminal)[0].splitlines() == ["job  us", "a     1", "b"]


def test_table_on_a_terminal_is_framed_and_keeps_brackets() -> None:
    terminal = on_screen()
    terminal.table(ROWS, left=1)
    out, _ = written(terminal)
    assert "─" in out
    assert "rms_norm_linear [M, K]" in out


def test_table_wider_than_the_terminal_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = on_screen()
    terminal.table(ROWS, left=1)
    assert "rms_norm_linear [M, K]  13.6\n" in written(terminal)[0]


def test_plain_progress_says_each_stage_once() -> None:
    terminal = in_file()
    with terminal.watch("rms_norm_linear") as progress:
        for done in range(100):
            progress(Event("search", done + 1, 100, f"{done} states"))
        progress(Event("emit", 0, 0, "3 files"))
    assert written(terminal)[1].splitlines() == [
        "rms_norm_linear",
        "  search   100/100  99 states",
        "  emit     3 files",
    ]


def test_plain_progress_goes_on_during_a_long_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_SECONDS", -1.0)
    terminal = in_file()
    with terminal.watch("rms_norm_linear") as progress:
        progress(Event("search", 1, 2, "a"))
        progress(Event("search", 2, 2, "b"))
    assert len(written(terminal)[1].splitlines()) == 3


def test_plain_progress_of_stages_abreast_says_when_each_ends() -> None:
    terminal = in_file()
    with terminal.watch("searching", abreast=True) as progress:
        for done in range(1, 4):
            progress(Event("gqa", done, 4, "search"))
            progress(Event("lora", done, 3, "verify"))
        progress(Event("gqa", 4, 4, "done"))
    assert written(terminal)[1].splitlines() == [
        "searching",
        "  lora     3/3  verify",
        "  gqa      4/4  done",
    ]


def test_bars_show_stage_and_words() -> None:
    terminal = on_screen()
    with terminal.watch("rms_norm_linear") as progress:
        progress(Event("search", 1, 2, "17 states"))
        progress(Event("emit", 0, 0, "[M, K]"))
    out, err = written(terminal)
    assert out == ""
    for words in ("rms_norm_linear", "search", "17 states", "[M, K]"):
        assert words in err


def test_json_keeps_stdout_for_the_document() -> None:
    terminal = in_file(as_json=True)
    terminal.line("a line")
    terminal.table(ROWS, left=1)
    terminal.note("a note")
    terminal.document({"a": 1})
    out, err = written(terminal)
    assert out == '{\n  "a": 1\n}\n'
    assert err == "a note\n"
