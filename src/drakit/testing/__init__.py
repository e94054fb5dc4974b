"""Fakes for tests of DRA drivers; this is the public API for driver authors.

:class:`SimulatedNode` connects :class:`FakeKubelet`, :class:`FakeRuntime` and :class:`FakeApiServer`;
:func:`build_machine` and :func:`write_tree` create sysfs trees of any machine.
"""

from drakit.testing.apiserver import FakeApiServer, Fault, Trouble
from drakit.testing.kubelet import (
    ContainerClaim,
    FakeKubelet,
    FakePod,
    PodClaim,
    PrepareError,
    UnprepareError,
)
from drakit.testing.node import RunningPod, SimulatedNode
from drakit.testing.runtime import FakeContainer, FakeRuntime, FakeRuntimeError
from drakit.testing.runtime_releases import EVERY_RELEASE, FakeRuntimeRelease
from drakit.testing.synthetic import build as build_machine
from drakit.testing.sysfs_writer import write_tree

__all__ = [
    "EVERY_RELEASE",
    "ContainerClaim",
    "FakeApiServer",
    "FakeContainer",
    "FakeKubelet",
    "FakePod",
    "FakeRuntime",
    "FakeRuntimeError",
    "FakeRuntimeRelease",
    "Fault",
    "PodClaim",
    "PrepareError",
    "RunningPod",
    "SimulatedNode",
    "Trouble",
    "UnprepareError",
    "build_machine",
    "write_tree",
]
