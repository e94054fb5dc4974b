"""Errors of API requests; all are :class:`KubeError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

LONGEST_RETRY_AFTER: Final = 3600
"""Upper limit of the seconds to wait, whatever the server asks for."""


class KubeError(Exception):
    """Base of all errors of this package."""

    retry_after: float | None = None
    """Seconds to wait, if the server asked for it."""


class ConfigError(KubeError):
    """Invalid kubeconfig or in-cluster configuration; the text names file and field."""


class CredentialError(KubeError):
    """No usable credential: the token file is missing or the exec plugin failed."""


class ConnectionFailedError(KubeError):
    """The server is unreachable, or the connection broke before the response was complete.

    The server may have executed a write.
    """


class ProtocolError(KubeError):
    """The response is not valid HTTP/1.1 or Kubernetes JSON, or exceeds a size limit."""


class DecodeError(KubeError):
    """An object does not match its type; the text names the field."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request and the server's ``Status``."""

    verb: str
    target: str
    code: int
    reason: str
    message: str
    details: dict[str, Any]
    retry_after: float | None = None


class ApiError(KubeError):
    """The server responded with a failure."""

    hint: ClassVar[str] = ""

    def __init__(self, failure: Failure) -> None:
        message = failure.message or failure.reason or "no reason given"
        text = f"cannot {failure.verb} {failure.target}: {message} (HTTP {failure.code})"
        hint = self.hint_for(failure)
        super().__init__(f"{text}. {hint}" if hint else text)
        self.failure = failure
        self.retry_after = failure.retry_after

    @classmethod
    def hint_for(cls, failure: Failure) -> str:
        """A remedy, if the kind of failure suggests one."""
        del failure
        return cls.hint

    @property
    def code(self) -> int:
        """The HTTP status code."""
        return self.failure.code

    @property
    def reason(self) -> str:
        """The machine-readable reason, such as ``AlreadyExists``."""
        return self.failure.reason


class BadRequestError(ApiError):
    """400: the server does not understand the request, e.g. an unknown field selector."""


class UnauthorizedError(ApiError):
    """401: the credential is missing, expired or invalid, even after it was read again."""

    hint = "The credential was rejected: check the ServiceAccount token or the kubeconfig user"


class ForbiddenError(ApiError):
    """403: rejected by RBAC or an admission plugin."""

    @classmethod
    def hint_for(cls, failure: Failure) -> str:
        """The RBAC rule that would allow it."""
        resource = failure.details.get("kind", "")
        group = failure.details.get("group", "")
        if not resource:
            return "Check the RBAC role of this identity and the admission policies"
        return (
            f"A role with verb {failure.verb!r} on resource {resource!r} of API group {group!r} "
            "allows it (or an admission policy must be relaxed)"
        )


class NotFoundError(ApiError):
    """404: no such object, or the API group is not served."""

    @classmethod
    def hint_for(cls, failure: Failure) -> str:
        """Distinguish a kind that is not served from a missing object."""
        # The first is sent for an unknown kind, the second for an unknown group or version.
        if "could not find the requested" in failure.message or "page not found" in failure.message:
            return "The server does not know this kind: resource.k8s.io/v1 came with Kubernetes 1.34"
        return ""


class ConflictError(ApiError):
    """409: the object changed since it was read, or a precondition failed."""


class AlreadyExistsError(ConflictError):
    """409 on create: the name is taken."""


class GoneError(ApiError):
    """410: the resource version is too old; list again."""


class RequestTooLargeError(ApiError):
    """413: the request body is too large."""


class InvalidError(ApiError):
    """422: the object violates the API's rules."""


class ServerBusyError(ApiError):
    """429 or 503: retry after ``retry_after`` seconds."""


class ServerError(ApiError):
    """5xx: the server failed."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: RequestTooLargeError,
    422: InvalidError,
    429: ServerBusyError,
    503: ServerBusyError,
}


def api_error(failure: Failure) -> ApiError:
    """The error that matches *failure*."""
    if failure.code == 409 and failure.reason == "AlreadyExists":
        return AlreadyExistsError(failure)
    if failure.reason in ("Expired", "Gone"):
        return GoneError(failure)
    fallback = ServerError if failure.code >= 500 else ApiError
    return _BY_CODE.get(failure.code, fallback)(failure)


def failure_from_status(
    document: Any, *, verb: str, target: str, code: int, retry_after: float | None = None
) -> Failure:
    """Read a ``Status`` object; for anything else (a proxy's HTML) only the code is known."""
    if not isinstance(document, dict):
        return Failure(verb, target, code, "", "", {}, retry_after)
    details = document.get("details")
    details = details if isinstance(details, dict) else {}
    asked = details.get("retryAfterSeconds")
    if retry_after is None and isinstance(asked, int) and asked > 0:
        retry_after = float(min(asked, LONGEST_RETRY_AFTER))
    own_code = document.get("code")
    return Failure(
        verb,
        target,
        own_code if isinstance(own_code, int) and code == 200 else code,
        str(document.get("reason") or ""),
        str(document.get("message") or ""),
        details,
        retry_after,
    )
