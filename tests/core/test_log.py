"""Structured logging: constant messages, fields that cannot forge a line."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.log import Message, format_fields, get_logger


def test_a_record_has_a_constant_message_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        get_logger("drakit.test").info("claim prepared", claim="ns/a", cpus="2-3")
    (record,) = caplog.records
    assert isinstance(record.msg, Message)
    assert (record.msg.text, record.msg.fields) == ("claim prepared", {"claim": "ns/a", "cpus": "2-3"})
    assert record.getMessage() == "claim prepared claim=ns/a cpus=2-3"
    assert record.funcName == "test_a_record_has_a_constant_message_and_its_fields"


def test_below_the_level_nothing_is_formatted() -> None:
    class Untouchable:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    logger = get_logger("drakit.test.quiet")
    logging.getLogger("drakit.test.quiet").setLevel(logging.ERROR)
    logger.info("x", value=Untouchable())


def test_values_with_spaces_quotes_and_newlines_are_quoted() -> None:
    assert format_fields({"a": "two words", "b": 'say "hi"', "c": "x\ny", "d": "", "e": "k=v"}) == (
        ' a="two words" b="say \\"hi\\"" c="x\\ny" d="" e="k=v"'
    )


@given(st.text())
def test_a_value_never_ends_the_line_or_forges_a_field(value: str) -> None:
    text = format_fields({"a": value})
    assert len(text.splitlines()) == 1
    quoted = text.removeprefix(" a=")
    assert (quoted.startswith('"') and quoted.endswith('"')) or not set(quoted) & set(" =")
