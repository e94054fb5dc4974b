"""What can go wrong between us and the API server, by kind, in the server's own words.

Every error is a :class:`KubeError`. ``transient`` says whether trying the same thing again later
can help without anybody changing anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

LONGEST_RETRY_AFTER: Final = 3600
"""Seconds a server is stayed away from at the most, whatever it asks for."""


class KubeError(Exception):
    """Base of everything this package raises on purpose."""

    transient: ClassVar[bool] = False
    retry_after: float | None = None
    """Seconds the server asked us to stay away, when it did."""


class ConfigError(KubeError):
    """The kubeconfig or the in-cluster mount cannot be used; the text names file and field."""


class CredentialError(KubeError):
    """No usable credential could be had: token file gone, exec plugin failed."""

    transient = True


class ConnectionFailedError(KubeError):
    """The server could not be reached, or the connection broke before an answer was complete.

    For a write this is ambiguous: the server may have carried it out.
    """

    transient = True


class ProtocolError(KubeError):
    """What came back is no HTTP/1.1 or no Kubernetes answer, or exceeds our size limits."""

    transient = True


class DecodeError(KubeError):
    """A well-formed object does not have the shape of its type; the text names the field."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request: what was asked, and the ``Status`` the server answered with."""

    verb: str
    target: str
    code: int
    reason: str
    message: str
    details: dict[str, Any]
    retry_after: float | None = None


class ApiError(KubeError):
    """The server answered, and the answer is no."""

    hint: ClassVar[str] = ""

    def __init__(self, failure: Failure) -> None:
        said = failure.message or failure.reason or "no reason given"
        text = f"cannot {failure.verb} {failure.target}: {said} (HTTP {failure.code})"
        super().__init__(f"{text}. {self.hint_for(failure)}" if self.hint_for(failure) else text)
        self.failure = failure
        self.retry_after = failure.retry_after

    @classmethod
    def hint_for(cls, failure: Failure) -> str:
        """What to do next, as far as the kind of failure tells."""
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

    @property
    def causes(self) -> tuple[tuple[str, str], ...]:
        """``(field, message)`` of each cause in the server's ``Status``."""
        causes = self.failure.details.get("causes")
        if not isinstance(causes, list):
            return ()
        return tuple(
            (str(cause.get("field", "")), str(cause.get("message", "")))
            for cause in causes
            if isinstance(cause, dict)
        )


class BadRequestError(ApiError):
    """400: the server does not understand the request, e.g. an unknown field selector."""


class UnauthorizedError(ApiError):
    """401: the credential is missing, expired or not believed, even after it was read anew."""

    transient = True
    hint = "The credential was refused: check the ServiceAccount token or the kubeconfig user"


class ForbiddenError(ApiError):
    """403: RBAC or an admission plugin says no."""

    transient = True  # a role binding may be created later; a daemon must not need a restart

    @classmethod
    def hint_for(cls, failure: Failure) -> str:
        """Which RBAC rule would allow it."""
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
        """Tell a kind that is not served from an object that is not there."""
        # The first is the answer for an unknown kind, the second for an unknown group or version.
        if "could not find the requested" in failure.message or "page not found" in failure.message:
            return (
                "The server does not know this kind: resource.k8s.io/v1 came with Kubernetes 1.34"
            )
        return ""


class ConflictError(ApiError):
    """409: the object changed since it was read, or a precondition does not hold."""

    transient = True


class AlreadyExistsError(ConflictError):
    """409 on create: the name is taken."""


class GoneError(ApiError):
    """410: the resource version is too old; list again."""

    transient = True


class RequestTooLargeError(ApiError):
    """413: the request body is larger than the server takes."""


class InvalidError(ApiError):
    """422: the object violates the API's rules; it stays invalid until somebody changes it."""


class ServerBusyError(ApiError):
    """429 or 503: the server asks for patience; ``retry_after`` says how much."""

    transient = True


class ServerError(ApiError):
    """5xx: the server failed."""

    transient = True


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
    """The error of the right kind for *failure*."""
    if failure.code == 409 and failure.reason == "AlreadyExists":
        return AlreadyExistsError(failure)
    if failure.reason in ("Expired", "Gone"):
        return GoneError(failure)
    fallback = ServerError if failure.code >= 500 else ApiError
    return _BY_CODE.get(failure.code, fallback)(failure)


def failure_from_status(
    document: Any, *, verb: str, target: str, code: int, retry_after: float | None = None
) -> Failure:
    """Read a ``Status`` object; anything else (a proxy's HTML, nothing) becomes a bare failure."""
    if not isinstance(document, dict):
        return Failure(verb, target, code, "", "", {}, retry_after)
    details = document.get("details")
    details = details if isinstance(details, dict) else {}
    asked = details.get("retryAfterSeconds")
    if retry_after is None and isinstance(asked, int) and asked > 0:
        retry_after = float(min(asked, LONGEST_RETRY_AFTER))
    said_code = document.get("code")
    return Failure(
        verb,
        target,
        said_code if isinstance(said_code, int) and code == 200 else code,
        str(document.get("reason") or ""),
        str(document.get("message") or ""),
        details,
        retry_after,
    )
