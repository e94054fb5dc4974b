from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.kube import errors
from drakit.wire.kube.client import _retry_after
from drakit.wire.kube.errors import api_error, failure_from_status


def error_of(document: Any, code: int) -> errors.ApiError:
    return api_error(failure_from_status(document, verb="list", target="slices", code=code))


@pytest.mark.parametrize(
    ("code", "reason", "kind", "transient"),
    [
        (400, "BadRequest", errors.BadRequestError, False),
        (401, "Unauthorized", errors.UnauthorizedError, True),
        (403, "Forbidden", errors.ForbiddenError, True),
        (404, "NotFound", errors.NotFoundError, False),
        (405, "MethodNotAllowed", errors.ApiError, False),
        (409, "Conflict", errors.ConflictError, True),
        (409, "AlreadyExists", errors.AlreadyExistsError, True),
        (410, "Expired", errors.GoneError, True),
        (413, "", errors.RequestTooLargeError, False),
        (422, "Invalid", errors.InvalidError, False),
        (429, "TooManyRequests", errors.ServerBusyError, True),
        (503, "ServiceUnavailable", errors.ServerBusyError, True),
        (500, "InternalError", errors.ServerError, True),
        (504, "Timeout", errors.ServerError, True),
    ],
)
def test_kinds(code: int, reason: str, kind: type[errors.ApiError], transient: bool) -> None:
    error = error_of({"reason": reason, "message": "the server's words"}, code)
    assert type(error) is kind
    assert error.transient is transient
    assert error.code == code
    assert error.reason == reason
    assert "the server's words" in str(error)
    assert "list slices" in str(error)


def test_forbidden_says_which_rule_is_missing() -> None:
    details = {"group": "resource.k8s.io", "kind": "resourceslices"}
    text = str(error_of({"message": "no", "details": details}, 403))
    assert "'list'" in text
    assert "'resourceslices'" in text
    assert "'resource.k8s.io'" in text


@pytest.mark.parametrize("asked", [3601, 10**18, 10**320, 9 * 10**3999])
def test_no_server_is_stayed_away_from_for_ever(asked: int) -> None:
    error = error_of({"details": {"retryAfterSeconds": asked}}, 503)
    assert error.retry_after == errors.LONGEST_RETRY_AFTER
    assert _retry_after(str(asked)) == errors.LONGEST_RETRY_AFTER
    assert _retry_after("9" * 5000) == errors.LONGEST_RETRY_AFTER  # more digits than int() takes


def test_causes_and_retry_after() -> None:
    details = {"causes": [{"field": "spec.x", "message": "bad"}, "?"], "retryAfterSeconds": 7}
    error = error_of({"details": details}, 422)
    assert error.causes == (("spec.x", "bad"),)
    assert error.retry_after == 7
    assert error_of({"details": {"causes": 5}}, 422).causes == ()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["code", "reason", "message", "details", "causes", "kind"]), inner
            )
        ),
        max_leaves=6,
    ),
    st.integers(400, 599),
)
def test_any_answer_makes_an_error_with_the_status_code(document: Any, code: int) -> None:
    error = error_of(document, code)
    assert error.code == code
    assert str(error)
    assert isinstance(error.causes, tuple)
