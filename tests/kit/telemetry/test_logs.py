"""Logs: one line each, with the identity of what they are about."""

from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.kit.telemetry.logs import about, configure


@pytest.fixture(autouse=True)
def restore_logging():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@given(st.text(), st.text(min_size=1))
def test_a_message_never_becomes_two_lines(message: str, name: str) -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        configure(form, "info", stream)  # type: ignore[arg-type]
        with about(claim=name):
            logging.getLogger("drakit.x").info("%s", message)
        written = stream.getvalue()
        assert written.endswith("\n")
        assert written.count("\n") == 1


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x85", "\u2028", "\x00", "\x7f", "\r", "\n"])
def test_terminal_control_characters_are_escaped(bad: str) -> None:
    stream = io.StringIO()
    configure("text", "info", stream)
    with about(claim=f"ns/{bad}"):
        logging.getLogger("drakit.x").info("name %s", bad)
    assert stream.getvalue().rstrip("\n").isprintable()
    assert len(stream.getvalue().splitlines()) == 1


def test_identity_is_on_every_line_and_gone_afterwards() -> None:
    stream = io.StringIO()
    configure("json", "info", stream)
    log = logging.getLogger("drakit.x")
    with about(claim="ns/a", uid="1"), about(pod="p", empty=""):
        log.warning("inside")
    log.info("outside")
    log.debug("unheard")
    inside, outside = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (inside["claim"], inside["uid"], inside["pod"]) == ("ns/a", "1", "p")
    assert inside["level"] == "warning"
    assert "empty" not in inside
    assert "claim" not in outside


def test_tracebacks_are_kept() -> None:
    for form in ("text", "json"):
        stream = io.StringIO()
        configure(form, "info", stream)  # type: ignore[arg-type]
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("drakit.x").exception("failed")
        assert "ValueError: why" in stream.getvalue()
