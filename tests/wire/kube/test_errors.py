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
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequestError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (405, "MethodNotAllowed", errors.ApiError),
        (409, "Conflict", errors.ConflictError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (410, "Expired", errors.GoneError),
        (413, "", errors.RequestTooLargeError),
        (422, "Invalid", errors.InvalidError),
        (429, "TooManyRequests", errors.ServerBusyError),
        (503, "ServiceUnavailable", errors.ServerBusyError),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_kinds(code: int, reason: str, kind: type[errors.ApiError]) -> None:
    error = error_of({"reason": reason, "message": "the server's words"}, code)
    assert type(error) is kind
    assert error.code == code
    assert error.reason == reason
    assert "the server's words" in str(error)
    assert "list slices" in str(error)


def test_forbidden_names_the_missing_rbac_rule() -> None:
    details = {"group": "resource.k8s.io", "kind": "resourceslices"}
    text = str(error_of({"message": "no", "details": details}, 403))
    assert "'list'" in text
    assert "'resourceslices'" in text
    assert "'resource.k8s.io'" in text


@pytest.mark.parametrize("asked", [3601, 10**18, 10**320, 9 * 10**3999])
def test_the_time_to_wait_is_limited(asked: int) -> None:
    error = error_of({"details": {"retryAfterSeconds": asked}}, 503)
    assert error.retry_after == errors.LONGEST_RETRY_AFTER
    assert _retry_after(str(asked)) == errors.LONGEST_RETRY_AFTER
    assert _retry_after("9" * 5000) == errors.LONGEST_RETRY_AFTER  # more digits than int() takes


def test_retry_after_is_read_from_the_details() -> None:
    assert error_of({"details": {"retryAfterSeconds": 7}}, 422).retry_after == 7


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
def test_any_response_makes_an_error_with_the_status_code(document: Any, code: int) -> None:
    error = error_of(document, code)
    assert error.code == code
    assert str(error)
