"""Comparison of the offline scheduler with the real one: same feasibility, same devices.

Each generated problem is created in a real API server, and the real kube-scheduler schedules its pod.
The stored objects are passed to ``drakit plan`` as files, in one of the usual forms. Both must agree
on whether the pod fits, on the node, the devices, their order and amounts, and on the reason
otherwise.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import random
import re
import shutil
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drakit.cli import main
from drakit.core.objects import from_builtins
from drakit.core.pods import Pod
from drakit.scheduler.placement import NodeResult, SchedulingResult, place, rejected_selectors
from tests.e2e.bed.kubernetes import ApiError
from tests.e2e.bed.oracle import Answer, Oracle
from tests.scheduler.problems import Json, problem
from tests.scheduler.wide_problems import claim_objects, cluster_objects, pod_object, private, wide_problem
from tests.scheduler.written import typed_cluster, write_problem

pytestmark = pytest.mark.newest
STEP_LIMIT = 200_000
"""Steps above which kube-scheduler may run into its own timeout on a busy machine."""
RENAMED = 500_000
"""Offset of the seed for a second attempt; claims of the first attempt still hold their devices."""
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
MERGE = "application/merge-patch+json"
DRA = "/apis/resource.k8s.io/v1"
PLURALS = {
    "Node": ("/api/v1", "nodes"),
    "ResourceSlice": (DRA, "resourceslices"),
    "DeviceClass": (DRA, "deviceclasses"),
    "DeviceTaintRule": (DRA, "devicetaintrules"),
    "ResourceClaim": (DRA, "resourceclaims"),
    "Pod": ("/api/v1", "pods"),
}


@dataclass(slots=True)
class Bench:
    """The running oracle with one persistent connection, for thousands of problems."""

    oracle: Oracle
    connection: http.client.HTTPSConnection

    def call(self, method: str, path: str, body: object = None, kind: str = "") -> Any:
        """One request; raises ``ApiError`` on a status of 400 or more."""
        text = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind or "application/json"}
        self.connection.request(method, path, text, headers)
        response = self.connection.getresponse()
        content = response.read()
        if response.status >= 400:
            try:
                message = json.loads(content)["message"]
            except ValueError:
                message = content.decode("utf-8", "replace")[:500]
            raise ApiError(response.status, f"{method} {path}: {message}")
        return json.loads(content)

    @staticmethod
    def path(item: Json) -> str:
        """The URL of an object's collection."""
        root, plural = PLURALS[item["kind"]]
        namespace = item["metadata"].get("namespace")
        return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"

    def create(self, item: Json) -> Json:
        """Create an object with its status; returns it as stored."""
        status = item.get("status")
        if item["kind"] == "Node":
            status = {**item["status"], "conditions": [{"type": "Ready", "status": "True"}]}
        path = self.path(item)
        made: Json = self.call("POST", path, item)
        if status:
            name = item["metadata"]["name"]
            made = self.call("PATCH", f"{path}/{name}/status", {"status": status}, MERGE)
        return made

    def clear(self) -> None:
        """Remove everything that affects the next problem."""
        now = {"gracePeriodSeconds": 0}
        self.call("DELETE", "/api/v1/namespaces/default/pods", now)
        self.call("DELETE", "/api/v1/nodes", now)
        for plural in ("resourceslices", "devicetaintrules"):
            self.call("DELETE", f"{DRA}/{plural}", now)

    def answer(self, posed: Json) -> Answer | None:
        """Decision of the scheduler about the pod, within 40 s.

        Devices with binding conditions keep the pod unbound until a driver sets them, so the claims
        count, too: then the node is that of the reservation.
        """
        seed = posed["seed"]
        path = f"/api/v1/namespaces/default/pods/pod-{seed}"
        begin = time.monotonic()
        while time.monotonic() < begin + 40:
            pod = self.call("GET", path)
            node = pod["spec"].get("nodeName", "")
            if node:
                return Answer(node, "")
            for condition in pod.get("status", {}).get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return Answer("", condition.get("message", ""))
            if time.monotonic() > begin + 1 and all(self.results(c) for c in posed["claims"]):
                return Answer("?", "")
            time.sleep(0.01)
        return None

    def results(self, claim: Json) -> list[Any]:
        """The devices of a claim, comparable with ours."""
        name = claim["metadata"]["name"]
        stored = self.call("GET", f"{DRA}/namespaces/default/resourceclaims/{name}")
        allocation = stored.get("status", {}).get("allocation") or {"devices": {"results": []}}
        return [
            [r["request"], r["driver"], r["pool"], r["device"], bool(r.get("adminAccess")),
             r.get("consumedCapacity", {})]
            for r in allocation["devices"]["results"]
        ]  # fmt: skip


@pytest.fixture(scope="module")
def bench(beside_the_boot: None) -> Iterator[Bench]:
    if shutil.which("go") is None or shutil.which("openssl") is None:
        pytest.skip("the real scheduler is built with Go and needs openssl; one is missing")
    with Oracle() as oracle:
        tls = ssl.create_default_context(cafile=str(oracle.ca))
        tls.load_cert_chain(oracle.client_certificate, oracle.client_key)
        host, _, port = oracle.url.removeprefix("https://").partition(":")
        connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=60)
        try:
            made = Bench(oracle, connection)
            made.call("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": ADMIN}}, MERGE)
            metadata = {"name": "other", "labels": ADMIN}
            other = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            made.call("POST", "/api/v1/namespaces", other)
            yield made
        finally:
            connection.close()


def test_a_hundred_problems_have_the_same_answer(bench: Bench, tmp_path: Path) -> None:
    tally = compare(bench, wide_problem, range(1000, 1100), tmp_path)
    assert tally["compared"] >= 60, f"too few problems were valid: {dict(tally)}"


@pytest.mark.full
def test_the_narrow_problems_have_the_same_answer(bench: Bench, tmp_path: Path) -> None:
    tally = compare(bench, problem, range(2000, 2400), tmp_path)
    assert tally["compared"] >= 200, f"too few problems were valid: {dict(tally)}"


@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_thousands_of_problems_have_the_same_answer(bench: Bench, tmp_path: Path, part: int) -> None:
    begin = 10_000 + 800 * part
    tally = compare(bench, wide_problem, range(begin, begin + 800), tmp_path)
    assert tally["compared"] >= 500, f"too few problems were valid: {dict(tally)}"


def compare(bench: Bench, make: Callable[[int], Json], seeds: range, directory: Path) -> Counter[str]:
    """Solve each problem with both schedulers; fail with all differences."""
    tally: Counter[str] = Counter()
    differences: list[str] = []
    for seed in seeds:
        posed = private(make(seed))
        outcome, difference = _compare_one(bench, posed, directory)
        if difference:  # once more: the scheduler may have decided before it saw every object
            posed = private({**make(seed), "seed": seed + RENAMED})
            outcome, difference = _compare_one(bench, posed, directory)
        tally[outcome] += 1
        if outcome in ("feasible", "infeasible", "error"):
            tally["compared"] += 1
        if difference:
            differences.append(f"seed {seed}: {difference}")
            print(differences[-1], flush=True)
    print(dict(tally), flush=True)
    assert not differences, "\n".join(differences)
    return tally


def _compare_one(bench: Bench, posed: Json, directory: Path) -> tuple[str, str]:
    try:
        try:
            cluster = [bench.create(item) for item in cluster_objects(posed)]
            claims = [bench.create(item) for item in claim_objects(posed)]
        except ApiError as rejected:
            if rejected.status not in (400, 403, 422):
                raise
            print(f"seed {posed['seed']} is refused: {rejected}")
            return "refused by the API server", _rejection_difference(posed, str(rejected))
        pod = pod_object(posed)
        placement = place(typed_cluster([*cluster, *claims]), from_builtins(pod, Pod))
        if any(a.at_least or a.steps > STEP_LIMIT for a in placement.nodes):
            return "too many steps for kube-scheduler", ""
        bench.create(pod)
        answer = bench.answer(posed)
        if answer is None:
            return "no answer in time", ""
        kind = "feasible" if placement.feasible else "infeasible"
        if any(a.fatal for a in placement.nodes):
            kind = "error"
        difference = _difference(bench, posed, placement, answer)
        return kind, difference or _planned(posed, placement, cluster, claims, pod, directory)
    finally:
        bench.clear()


def _difference(bench: Bench, posed: Json, placement: SchedulingResult, answer: Answer) -> str:
    if answer.scheduled != placement.feasible:
        return f"we say {_told(placement)}, the scheduler {answer}"
    if not answer.scheduled:
        return _reason_difference(placement, answer.message)
    fitting = [a for a in placement.nodes if a.fits and answer.node in ("?", a.name)]
    if not fitting:
        return f"the scheduler chose {answer.node}, where it does not fit for us: {placement}"
    found = [_device_difference(bench, posed, placement, ours) for ours in fitting]
    return "" if "" in found else found[0]


def _rejection_difference(posed: Json, message: str) -> str:
    """An expression that the API server rejects is also rejected by drakit."""
    if "resourceclaims" not in message or "compilation failed" not in message:
        return ""
    claims = typed_cluster(claim_objects(posed)).claims
    return "" if any(map(rejected_selectors, claims)) else f"we accept what is refused: {message}"


def _told(placement: SchedulingResult) -> str:
    return f"{placement.feasible} on {[(a.name, a.fits, a.reason) for a in placement.nodes]}"


def _device_difference(bench: Bench, posed: Json, placement: SchedulingResult, ours: NodeResult) -> str:
    new = {a.claim.metadata.name: a for a in ours.allocations}
    for claim in posed["claims"]:
        name = claim["metadata"]["name"]
        theirs = bench.results(claim)
        if name not in new:
            continue
        mine = [
            [str(p.request), *p.device, p.admin, {k: str(v) for k, v in p.consumed.items()}]
            for p in new[name].picks
        ]
        if mine != theirs:
            return f"claim {name} on {ours.name}: we take {mine}, the scheduler {theirs}"
    return ""


def _reason_difference(placement: SchedulingResult, message: str) -> str:
    """The scheduler's message names our reasons, each with its number of nodes, or our error."""
    fatal = [a.reason for a in placement.nodes if a.fatal]
    if fatal:
        wanted = [_plain(reason) for reason in fatal]
        return "" if any(w in _plain(message) for w in wanted) else f"{fatal} is not {message!r}"
    # drakit also names the taint; the real message does not.
    plain = [re.sub(r"taint \{.*\}", "taint(s)", a.reason) for a in placement.nodes]
    reasons = Counter(plain)
    for reason, count in reasons.items():
        said = f"{count} {reason}" in message or f"nodes are available: {reason}" in message
        if not said and not message.endswith(reason):
            if reason.startswith("node(s) didn't match"):
                continue  # nodes of a PreFilter are not always counted
            return f"{count} × {reason!r} is not in {message!r}"
    return ""


def _plain(text: str) -> str:
    """Without the parts that may differ: positions and hints of CEL errors."""
    text = re.sub(r"CEL runtime error: .*", "CEL runtime error", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text)


def _planned(
    posed: Json,
    placement: SchedulingResult,
    cluster: list[Json],
    claims: list[Json],
    pod: Json,
    directory: Path,
) -> str:
    """The same through files and ``drakit plan``."""
    choice = random.Random(posed["seed"])
    arguments = write_problem(choice, directory, cluster, claims, pod)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main(["plan", *arguments, "--output", "json"])
    if code != (0 if placement.feasible else 1):
        return f"drakit plan {arguments} exits with {code}, {output.getvalue()[:400]}"
    document = json.loads(output.getvalue())
    if (document["feasible"], document["node"]) != (placement.feasible, placement.node):
        return f"drakit plan {arguments} says {document}, not {_told(placement)}"
    new = {a.claim.metadata.name: a for a in placement.allocations}
    for claim, shown in zip(claims, document["claims"], strict=False):
        allocation = new.get(claim["metadata"]["name"])
        if allocation is not None:
            mine = [[str(p.request), *p.device] for p in allocation.picks]
            shows = [[r["request"], r["driver"], r["pool"], r["device"]] for r in shown["results"]]
            if mine != shows:
                return f"drakit plan {arguments} takes {shows}, not {mine}"
    return ""
