"""The API server: a small asynchronous client, and a view of its objects that keeps itself current.

* :func:`find_cluster`, :func:`in_cluster`: which server, as whom.
* :class:`Client`: get, list, watch, create, update, patch, apply, delete.
* :class:`Reflector`: list and watch for ever into a :class:`Store`.
* :func:`read_all`: several kinds at once, for a command line.

Errors are :class:`KubeError` and say what was asked, what the server answered and what to do.
"""

from drakit.wire.kube.access.config import Cluster, find_cluster, in_cluster
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.backoff import Backoff
from drakit.wire.kube.client import EVERYTHING, Client, Listing, Patch, Selection
from drakit.wire.kube.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConfigError,
    ConflictError,
    ConnectionFailedError,
    CredentialError,
    DecodeError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    ProtocolError,
    RequestTooLargeError,
    ServerBusyError,
    ServerError,
    UnauthorizedError,
)
from drakit.wire.kube.http import Limits
from drakit.wire.kube.resources import (
    ACCESS_REVIEWS,
    CLAIM_TEMPLATES,
    CLAIMS,
    CLASSES,
    EVENTS,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
    Object,
    Resource,
)
from drakit.wire.kube.watch.decoder import EventKind, WatchEvent
from drakit.wire.kube.watch.reflector import Reflector
from drakit.wire.kube.watch.snapshot import Found, read_all
from drakit.wire.kube.watch.store import Change, Store

__all__ = [
    "ACCESS_REVIEWS",
    "CLAIMS",
    "CLAIM_TEMPLATES",
    "CLASSES",
    "EVENTS",
    "EVERYTHING",
    "NODES",
    "PODS",
    "SLICES",
    "TAINT_RULES",
    "AlreadyExistsError",
    "ApiError",
    "Backoff",
    "BadRequestError",
    "Change",
    "Client",
    "Cluster",
    "ConfigError",
    "ConflictError",
    "ConnectionFailedError",
    "CredentialError",
    "DecodeError",
    "Endpoint",
    "EventKind",
    "ForbiddenError",
    "Found",
    "GoneError",
    "InvalidError",
    "KubeError",
    "Limits",
    "Listing",
    "NotFoundError",
    "Object",
    "Patch",
    "ProtocolError",
    "Reflector",
    "RequestTooLargeError",
    "Resource",
    "Selection",
    "ServerBusyError",
    "ServerError",
    "Store",
    "UnauthorizedError",
    "WatchEvent",
    "find_cluster",
    "in_cluster",
    "read_all",
]
