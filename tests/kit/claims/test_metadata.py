"""Metadata files: what KEP-5304 says, rebuilt like CDI specs, never another claim's."""

from __future__ import annotations

import builtins
import errno
import os
import stat

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakit.core.objects import int_attribute, string_attribute
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.driver import PreparedClaim, PreparedDevice, RejectedError

DRIVER = "d.example.com"


def entry(uid="u1", name="claim", devices=None, **more):
    devices = devices or (
        PreparedDevice(request="a", pool="p", device="d0", attributes={"numa": int_attribute(1)}),
        PreparedDevice(request="a", pool="p", device="d1"),
        PreparedDevice(request="b", pool="p", device="d2", attributes={"x": string_attribute("y")}),
    )
    return PreparedClaim(uid=uid, namespace="ns", name=name, devices=devices, **more)


@pytest.fixture
def files(tmp_path):
    return MetadataFiles(str(tmp_path), DRIVER)


def objects(path):
    with open(path, "rb") as file:
        return [msgspec.json.decode(line) for line in file]


def listed(root):
    return sorted(os.path.relpath(os.path.join(d, f), root) for d, _, names in os.walk(root) for f in names)


def test_one_file_per_request_with_every_version_newest_first(files, tmp_path):
    mounts = files.write(entry())
    assert listed(tmp_path) == [
        "dra-device-metadata/ns_claim/a/metadata.json",
        "dra-device-metadata/ns_claim/b/metadata.json",
    ]
    newest, oldest = objects(mounts["a"].host_path)
    assert newest["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    assert oldest == {**newest, "apiVersion": "metadata.resource.k8s.io/v1alpha1"}
    assert newest["kind"] == "DeviceMetadata"
    assert newest["metadata"] == {"name": "claim", "namespace": "ns", "uid": "u1", "generation": 1}
    assert newest["requests"] == [
        {
            "name": "a",
            "devices": [
                {"driver": DRIVER, "pool": "p", "name": "d0", "attributes": {"numa": {"int": 1}}},
                {"driver": DRIVER, "pool": "p", "name": "d1"},
            ],
        }
    ]
    assert stat.S_IMODE(os.stat(mounts["a"].host_path).st_mode) == 0o644


def test_mounts_for_both_kinds_of_claims(files):
    root = "/var/run/kubernetes.io/dra-device-attributes"
    direct = files.write(entry())["a"]
    assert direct.container_path == f"{root}/resourceclaims/claim/a/{DRIVER}-metadata.json"
    assert direct.options == ("ro", "bind")
    made = files.write(entry(uid="u2", name="pod-x7", pod_claim_name="cpus"))["b"]
    assert made.container_path == f"{root}/resourceclaimtemplates/cpus/b/{DRIVER}-metadata.json"
    assert objects(made.host_path)[0]["podClaimName"] == "cpus"


def test_a_repeat_changes_nothing_and_a_change_is_the_next_generation(files):
    path = files.write(entry())["a"].host_path
    inode = os.stat(path).st_ino
    files.write(entry())
    assert os.stat(path).st_ino == inode
    files.write(entry(devices=(PreparedDevice(request="a", pool="p", device="other"),)))
    assert objects(path)[0]["metadata"]["generation"] == 2
    assert objects(path)[0]["requests"][0]["devices"][0]["name"] == "other"


def test_a_damaged_file_is_written_anew(files):
    path = files.write(entry())["a"].host_path
    with open(path, "w") as file:
        file.write("{")
    files.write(entry())
    assert objects(path)[0]["metadata"]["uid"] == "u1"


def test_removal_leaves_a_later_claim_of_the_same_name_alone(files, tmp_path):
    files.write(entry(uid="old"))
    path = files.write(entry(uid="new"))["a"].host_path
    files.remove(entry(uid="old"))
    assert objects(path)[0]["metadata"] == {"name": "claim", "namespace": "ns", "uid": "new", "generation": 1}
    files.remove(entry(uid="new"))
    assert os.listdir(tmp_path / "dra-device-metadata") == []
    files.remove(entry(uid="new"))


def test_leftovers_are_removed(files, tmp_path):
    files.write(entry())
    files.write(entry(uid="u2", name="gone"))
    files.keep_only([entry()])
    assert listed(tmp_path) == [
        "dra-device-metadata/ns_claim/a/metadata.json",
        "dra-device-metadata/ns_claim/b/metadata.json",
    ]
    files.keep_only([])
    assert listed(tmp_path) == []
    MetadataFiles(str(tmp_path / "nothing"), DRIVER).keep_only([])


def test_too_many_attributes_are_rejected(files):
    many = {f"a{n}": int_attribute(n) for n in range(33)}
    with pytest.raises(RejectedError, match="33 attributes"):
        files.write(entry(devices=(PreparedDevice(request="a", pool="p", device="d", attributes=many),)))


def test_a_file_that_cannot_be_read_is_not_taken_for_ones_own(files, tmp_path, monkeypatch):
    """It may be a later claim's; whoever asked comes again."""
    mounts = files.write(entry(uid="later"))
    real = builtins.open

    def failing(path, *args):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(builtins, "open", failing)
    with pytest.raises(OSError, match="Input/output error"):
        files.remove(entry(uid="earlier"))
    monkeypatch.setattr(builtins, "open", real)
    assert objects(mounts["a"].host_path)[0]["metadata"]["uid"] == "later"


@pytest.mark.parametrize(
    "name",
    [
        "../../../../../../etc/cron.d",
        "cpus/../../x",
        "cpus\n/x",
        "cpus\n",
        "..",
        ".",
        "",
        "/etc",
        "Cpus",
        "-cpus",
        "a.b",
        "x" * 64,
        "c\u00b5",
    ],
)
def test_nothing_written_in_an_annotation_reaches_a_path(files, name):
    path = files.write(entry(pod_claim_name=name))["a"].container_path
    root = "/var/run/kubernetes.io/dra-device-attributes"
    assert path == f"{root}/resourceclaims/claim/a/{DRIVER}-metadata.json"
    assert "podClaimName" not in objects(files.path(entry(), "a"))[0]


@settings(max_examples=300)
@given(st.text(max_size=70))
def test_no_annotation_adds_a_level_to_the_container_path(name):
    path = MetadataFiles("/nowhere", DRIVER).container_path(entry(pod_claim_name=name), "a")
    assert os.path.normpath(path) == path
    assert path.count("/") == "/var/run/kubernetes.io/dra-device-attributes/x/y/a/z".count("/")
    assert path.isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../x"},
        {"name": "a..b"},
        {"name": "x" * 254},
        {"namespace": "../.."},
        {"devices": (PreparedDevice(request="../r", pool="p", device="d0"),)},
    ],
    ids=["name", "dots", "length", "namespace", "request"],
)
def test_a_name_the_api_server_would_not_accept_makes_no_file(files, tmp_path, changes):
    odd = msgspec.structs.replace(entry(), **changes)
    with pytest.raises(RejectedError, match="would not accept"):
        files.write(odd)
    files.remove(odd)
    assert listed(tmp_path) == []


def test_usual_names_are_accepted(files):
    files.write(entry(name="my.claim-0", pod_claim_name="c"))
    files.write(entry(name="x" * 63 + "." + "y" * 63, pod_claim_name="0" * 63))
