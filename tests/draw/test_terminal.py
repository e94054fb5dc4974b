from __future__ import annotations

import io
import os
import pty

import pytest

from drakit.draw.terminal import NARROWEST, USUAL, WIDEST, Terminal, paint


class Screen(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True


def test_a_pipe_is_plain_and_of_the_usual_width() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert Terminal.of(stream, {}) == Terminal(USUAL, color=False, unicode=True)


@pytest.mark.parametrize(
    ("environment", "color"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm"}, True),
    ],
)
def test_colors_need_a_terminal_and_no_opt_out(environment: dict[str, str], color: bool) -> None:
    assert Terminal.of(Screen(), environment).color is color


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("120", 120),
        ("3", NARROWEST),
        ("99999", WIDEST),
        ("0", USUAL),
        ("wide", USUAL),
        ("-5", USUAL),
        ("1" * 5000, USUAL),
    ],
)
def test_columns_decide_the_width_within_reason(columns: str, width: int) -> None:
    assert Terminal.of(Screen(), {"COLUMNS": columns}).width == width


def test_the_size_of_a_real_terminal_is_used() -> None:
    master, slave = pty.openpty()
    try:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 133, 0, 0))
        with open(slave, "w", encoding="utf-8") as stream:
            assert Terminal.of(stream, {"TERM": "xterm"}) == Terminal(133, color=True)
    finally:
        os.close(master)


def test_streams_that_cannot_carry_boxes_get_ascii() -> None:
    assert not Terminal.of(Screen("ascii"), {}).unicode
    assert not Terminal.of(Screen("latin-1"), {}).unicode


def test_paint() -> None:
    assert paint("x", "1") == "\x1b[1mx\x1b[0m"
    assert paint("x", "") == "x"
    assert Terminal(color=True).paint("x", "1") == "\x1b[1mx\x1b[0m"
    assert Terminal(color=False).paint("x", "1") == "x"
