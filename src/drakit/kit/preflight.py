"""Preflight checks: whether this node meets a driver's requirements, with a remedy for each failure.

Nothing is changed: no file is written and no service restarted. Used by a driver's ``--check`` and by
``drakit doctor``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from drakit.core.text import count
from drakit.kit.claims.binding_conditions import needs_binder
from drakit.kit.config.options import HostOptions, listen_address
from drakit.kit.driver import Driver
from drakit.wire.kube import ACCESS_REVIEWS, NODES, Client, KubeError, find_cluster
from drakit.wire.kubelet import SocketPathError
from drakit.wire.kubelet.sockets import registration_socket, service_socket


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: passed, worth knowing (``note``) or failed (``problem``), with a remedy."""

    subject: str
    detail: str
    problem: str = ""
    remedy: str = ""
    note: str = ""

    def __str__(self) -> str:
        if not self.problem and not self.note:
            return f"[+] {self.subject}: {self.detail}"
        sign = "[-]" if self.problem else "[!]"
        return f"{sign} {self.subject}: {self.problem or self.note}\n      {self.remedy}"


def run_checks(
    discover: Callable[[], Driver], options: HostOptions, node: str, more: Iterable[CheckResult] = ()
) -> int:
    """Print the results of all checks, *more* first; the exit code is 0 if none failed, else 1."""
    good = True
    for finding in itertools.chain(more, findings(discover, options, node)):
        print(finding)
        good &= not finding.problem
    print("ready" if good else "not ready: see the lines marked [-]")
    return 0 if good else 1


def findings(discover: Callable[[], Driver], options: HostOptions, node: str) -> Iterator[CheckResult]:
    """Run all checks, quick ones first."""
    try:
        driver = discover()
        offer = driver.offer()
        devices = count(sum(len(pool.devices) for pool in offer.pools), "device")
    except (OSError, ValueError) as error:
        yield CheckResult("driver", "", str(error), "correct the configuration, then check again")
        return
    yield CheckResult("driver", f"{driver.name} offers {devices} on node {node}")
    yield from check_directories(options, driver.name)
    yield check_nri(options)
    yield check_port(options)
    yield from asyncio.run(check_api(options, node, binding=needs_binder(offer)))


def check_directories(options: HostOptions, driver: str) -> Iterator[CheckResult]:
    """Check the directories of kubelet and runtime, and the lengths of the socket paths."""
    root = os.path.normpath(options.kubelet_root_dir)
    registry = os.path.join(root, "plugins_registry")
    yield _directory(
        "kubelet", registry, "is the kubelet installed? If its --root-dir is elsewhere, set kubeletRootDir"
    )
    plugins = os.path.join(root, "plugins")
    yield _directory("plugin data", plugins, "it must be writable for the driver")
    try:
        service_socket(options.plugin_dir(driver), options.pod_uid or None)
        registration_socket(registry, driver, options.pod_uid or None)
        yield CheckResult("socket paths", "short enough")
    except SocketPathError as error:
        yield CheckResult("socket paths", "", str(error), "use a shorter kubelet root directory")
    yield _directory(
        "CDI",
        options.cdi_dir,
        "create it, and check that the runtime's cdi_spec_dirs contain it; set cdiDir if it is elsewhere",
    )


def _directory(subject: str, path: str, remedy: str) -> CheckResult:
    if not os.path.isdir(path):
        return CheckResult(subject, "", f"{path} does not exist", remedy)
    if not os.access(path, os.W_OK | os.X_OK):
        return CheckResult(subject, "", f"{path} is not writable", f"run as root; {remedy}")
    return CheckResult(subject, f"{path} is writable")


def check_nri(options: HostOptions) -> CheckResult:
    """Check that the runtime listens on its NRI socket."""
    if options.nri == "off":
        return CheckResult("NRI", "off by configuration: containers are not pinned")
    path = options.nri_socket
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISSOCK(mode):
            return CheckResult("NRI", "", f"{path} is not a socket", "set nriSocket to the runtime's")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(2)
            probe.connect(path)
    except FileNotFoundError:
        return CheckResult(
            "NRI",
            "",
            f"{path} does not exist",
            "enable NRI: containerd 2.x and CRI-O 1.30+ have it on; containerd 1.7 needs "
            "disable = false in [plugins.'io.containerd.nri.v1.nri'], then a restart",
        )
    except OSError as error:
        return CheckResult("NRI", "", f"{path}: {error}", "is the container runtime running?")
    return CheckResult("NRI", f"{path} answers")


def check_port(options: HostOptions) -> CheckResult:
    """Check that the address of the health endpoint is available."""
    if not options.bind_address:
        return CheckResult("health endpoint", "disabled by configuration")
    host, port = listen_address(options.bind_address)
    family = socket.AF_INET6 if host and ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host or "", port))
        except OSError as error:
            return CheckResult("health endpoint", "", f"{options.bind_address}: {error}", "set bindAddress")
    return CheckResult("health endpoint", f"{options.bind_address} is available")


async def check_api(options: HostOptions, node: str, *, binding: bool) -> list[CheckResult]:
    """Check the API server, the Node object, and all permissions; *binding*: also for binding conditions."""
    try:
        cluster = find_cluster(kubeconfig=options.kubeconfig or None)
    except KubeError as error:
        return [CheckResult("API server", "", str(error), "give --kubeconfig, or run as a pod")]
    async with Client(cluster) as client:
        try:
            version = (await client.get_document("/version")).get("gitVersion", "unknown")
            found = [CheckResult("API server", f"{cluster.origin}: Kubernetes {version}")]
            await client.get(NODES, node)
            found.append(CheckResult("node", f"{node} exists"))
            found += [await _check_permission(client, *each) for each in _permissions(binding=binding)]
        except KubeError as error:
            return [CheckResult("API server", "", str(error), "see the message")]
    return found


def _permissions(*, binding: bool) -> Iterator[tuple[str, str]]:
    for verb in ("list", "watch", "create", "update", "delete"):
        yield verb, "resourceslices"
    for verb in ("get", "list", "watch") if binding else ("get",):
        yield verb, "resourceclaims"
    if binding:
        yield "patch", "resourceclaims/status"


async def _check_permission(client: Client, verb: str, resource: str) -> CheckResult:
    plural, _, subresource = resource.partition("/")
    asked = {"verb": verb, "group": "resource.k8s.io", "resource": plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked | {"subresource": subresource}},
    }
    answer = await client.create(ACCESS_REVIEWS, review)
    if answer.raw.get("status", {}).get("allowed"):
        return CheckResult("rights", f"may {verb} {resource}")
    return CheckResult(
        "rights",
        "",
        f"may not {verb} {resource}",
        "apply the ClusterRole of the driver's chart and bind it to its service account",
    )
