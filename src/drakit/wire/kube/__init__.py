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
    AlreadyExists,
    ApiError,
    BadRequest,
    Busy,
    ConfigError,
    Conflict,
    ConnectionFailed,
    CredentialError,
    DecodeError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    ProtocolError,
    ServerFault,
    TooLarge,
    Unauthorized,
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
    "AlreadyExists",
    "ApiError",
    "Backoff",
    "BadRequest",
    "Busy",
    "Change",
    "Client",
    "Cluster",
    "ConfigError",
    "Conflict",
    "ConnectionFailed",
    "CredentialError",
    "DecodeError",
    "Endpoint",
    "EventKind",
    "Forbidden",
    "Found",
    "Gone",
    "Invalid",
    "KubeError",
    "Limits",
    "Listing",
    "NotFound",
    "Object",
    "Patch",
    "ProtocolError",
    "Reflector",
    "Resource",
    "Selection",
    "ServerFault",
    "Store",
    "TooLarge",
    "Unauthorized",
    "WatchEvent",
    "find_cluster",
    "in_cluster",
    "read_all",
]
