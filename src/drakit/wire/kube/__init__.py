"""Kubernetes API client.

* :func:`find_cluster`, :func:`in_cluster`: server address and credentials.
* :class:`Client`: get, list, watch, create, update, patch, apply, delete.
* :class:`Reflector`: lists and watches continuously into a :class:`Store`.
* :func:`read_all`: lists of several resources at once, without an event loop.

Errors are :class:`KubeError`; they name the request, the server's response and a remedy.
"""

from drakit.wire.kube.access.config import ClusterAccess, find_cluster, in_cluster
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.backoff import Backoff
from drakit.wire.kube.client import Client, Selection
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
    ServerBusyError,
    ServerError,
    UnauthorizedError,
)
from drakit.wire.kube.http import HttpLimits
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
from drakit.wire.kube.watch.snapshot import read_all
from drakit.wire.kube.watch.store import ObjectChange, Store

__all__ = [
    "ACCESS_REVIEWS",
    "CLAIMS",
    "CLAIM_TEMPLATES",
    "CLASSES",
    "EVENTS",
    "NODES",
    "PODS",
    "SLICES",
    "TAINT_RULES",
    "AlreadyExistsError",
    "ApiError",
    "Backoff",
    "BadRequestError",
    "Client",
    "ClusterAccess",
    "ConfigError",
    "ConflictError",
    "ConnectionFailedError",
    "CredentialError",
    "DecodeError",
    "Endpoint",
    "EventKind",
    "ForbiddenError",
    "GoneError",
    "HttpLimits",
    "InvalidError",
    "KubeError",
    "NotFoundError",
    "Object",
    "ObjectChange",
    "ProtocolError",
    "Reflector",
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
