"""The kubelet's file and drop-ins come together as the kubelet puts them together."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drakit.drivers.cpumem.qos import kubeletconfig
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletConfig, KubeletConfigError, KubeletFiles, parse
from drakit.drivers.cpumem.qos.ownership import OwnershipReader, allocatable_memory
from drakit.kit.config.options import HostOptions

MI = 1 << 20


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> KubeletFiles:
    return KubeletFiles(str(tmp_path / "config.yaml"), str(tmp_path / "conf.d"))


def write(files: KubeletFiles, main: str | bytes | None = None, **drop_ins: str | bytes) -> None:
    """The file, and drop-ins by name, where ``__`` stands for a slash and ``.conf`` is added."""
    texts = {os.path.join(files.drop_in_dir, *k.split("__")) + ".conf": drop_ins[k] for k in drop_ins}
    if main is not None:
        texts[files.path] = main
    for path, text in texts.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(text.encode() if isinstance(text, str) else text)


def read(files: KubeletFiles) -> KubeletConfig:
    found = files.read()
    assert found is not None
    return found


def factor(number: int) -> str:
    return f"memoryThrottlingFactor: {number}\n"


def names(files: KubeletFiles) -> list[str]:
    return [os.path.relpath(path, files.drop_in_dir) for path in files.drop_ins()]


# -- where and in which order ------------------------------------------------------------------------


def test_options_say_where_they_are() -> None:
    options = HostOptions(kubelet_root_dir="/k", kubelet_config_dir="/d")
    assert KubeletFiles.of(options) == KubeletFiles("/k/config.yaml", "/d")
    assert KubeletFiles.of(options, "/other") == KubeletFiles("/other", "/d")
    assert KubeletFiles.of(HostOptions()).drop_in_dir == ""


def test_drop_ins_go_over_the_file_in_their_order(files: KubeletFiles) -> None:
    write(
        files,
        "kind: KubeletConfiguration\nfeatureGates: {A: true, MemoryQoS: true}\n",
        **{
            "20-b": "memoryReservationPolicy: TieredReservation\n",
            "10-a": "memoryReservationPolicy: None\nfeatureGates: {MemoryQoS: false}\n",
        },
    )
    Path(files.drop_in_dir, "30-c.yaml").write_text("memoryReservationPolicy: None\n")
    found = read(files)
    assert found.memory_reservation_policy == "TieredReservation"
    assert found.feature_gates == {"A": True, "MemoryQoS": False}


def test_neither_needs_to_be_there(files: KubeletFiles) -> None:
    assert files.read() is None
    write(files, None, one=factor(1))
    assert read(files).memory_throttling_factor == 1  # k3s has drop-ins only
    assert KubeletFiles(files.path).read() is None
    write(files, factor(2))
    assert KubeletFiles(files.path).read() == read(KubeletFiles(files.path, "/nowhere"))


def test_subdirectories_are_in_the_place_of_their_name(files: KubeletFiles) -> None:
    """By names at each level, not by whole paths, in which ``/`` comes after ``-`` and ``.``."""
    write(files, None, **{"a": "", "a-b": "", "a__x": "", "a__b__y": "", "B": "", "é": "", "z": ""})
    Path(files.drop_in_dir, "a", "readme").write_text("[")
    Path(files.drop_in_dir, ".conf").write_text("")
    Path(files.drop_in_dir, "a.conf.bak").write_text("[")
    expected = [
        ".conf", "B.conf", "a/b/y.conf", "a/x.conf", "a-b.conf", "a.conf", "z.conf", "é.conf",
    ]  # fmt: skip
    assert names(files) == expected


@given(
    st.lists(
        st.lists(st.text("ab.-0~é", min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=8
    )
)
def test_the_last_in_the_order_of_names_wins(paths: list[list[str]]) -> None:
    """Order of paths is order of lists of names, bytewise: what Go's ``WalkDir`` gives."""
    with tempfile.TemporaryDirectory() as directory:
        files = KubeletFiles("/nowhere", os.path.join(directory, "conf.d"))
        made = {}
        for number, (*above, name) in enumerate(paths):
            path = (*(f"{part}_" for part in above), f"{name}.conf")
            Path(files.drop_in_dir, *path).parent.mkdir(parents=True, exist_ok=True)
            Path(files.drop_in_dir, *path).write_text(factor(number))
            made[path] = number
        expected = sorted(made, key=lambda path: [part.encode() for part in path])
        assert names(files) == ["/".join(path) for path in expected]
        assert read(files).memory_throttling_factor == made[expected[-1]]


# -- merging -----------------------------------------------------------------------------------------


def test_null_takes_a_key_away(files: KubeletFiles) -> None:
    write(
        files,
        "featureGates: {A: true, B: true}\nmemoryThrottlingFactor: 0.9\nkubeReserved:\n",
        one="featureGates: {A: null}\nmemoryThrottlingFactor: null\n",
    )
    assert read(files) == KubeletConfig(
        feature_gates={"B": True}, eviction_hard={"memory.available": "100Mi"}
    )
    write(files, None, two="featureGates: null\n")
    assert read(files).feature_gates == {}


@pytest.mark.parametrize(
    ("main", "drop_in", "kept"),
    [
        ("", "evictionHard: {nodefs.available: 5%}", 100 * MI),  # over the defaults
        ("evictionHard: {imagefs.available: 5%}", "evictionHard: {nodefs.available: 5%}", 0),
        ("evictionHard: {memory.available: 1Mi}", "evictionHard: {nodefs.available: 5%}", MI),
        ("", "evictionHard: {memory.available: 1Mi}", MI),
        (None, "evictionHard: {nodefs.available: 5%}", 0),  # defaults go into the file alone
        (None, "", 100 * MI),
    ],
)
def test_eviction_thresholds_go_over_the_defaults(
    files: KubeletFiles, main: str | None, drop_in: str, kept: int
) -> None:
    write(files, main, one=drop_in)
    assert allocatable_memory(read(files), 1024 * MI, 0) == 1024 * MI - kept


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, as it is written there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def amounts() -> st.SearchStrategy[Any]:
    keys, texts = st.sampled_from(["memory", "cpu"]), st.sampled_from(["1Gi", "2Gi"])
    return st.none() | st.dictionaries(keys, st.none() | texts)


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "cpuManagerPolicy": st.none() | st.sampled_from(["none", "static"]),
        "memoryThrottlingFactor": st.none() | st.floats(0, 1),
        "featureGates": st.none()
        | st.dictionaries(st.sampled_from(["A", "B", "C"]), st.none() | st.booleans()),
        "kubeReserved": amounts(),
        "systemReserved": amounts(),
        "evictionHard": st.dictionaries(st.just("memory.available"), st.just("5%")),
        "clusterDNS": st.lists(st.integers(), max_size=2),
        "authentication": st.fixed_dictionaries({"webhook": st.just({"enabled": True})}),
    },
)


@given(PARTS, st.lists(PARTS, max_size=4))
def test_merging_is_that_of_json_merge_patch(main: Any, parts: list[Any]) -> None:
    main.setdefault("evictionHard", {"memory.available": "100Mi"})
    expected = merge_patch({}, main)
    for part in parts:
        expected = merge_patch(expected, part)
    with tempfile.TemporaryDirectory() as directory:
        files = KubeletFiles(f"{directory}/config.yaml", f"{directory}/conf.d")
        drop_ins = {str(number): json.dumps(part) for number, part in enumerate(parts)}
        write(files, json.dumps(main), **drop_ins)
        assert files.read() == parse(expected, "test")


@pytest.mark.parametrize(("text", "factor"), [("9e-1", 0.9), ("0.5", 0.5), ("5E-1", 0.5)])
def test_a_number_with_an_exponent_is_a_number(files: KubeletFiles, text: str, factor: float) -> None:
    write(files, f"memoryThrottlingFactor: {text}\n")
    assert read(files).memory_throttling_factor == factor


def test_a_saved_answer_of_configz_is_a_file_too(files: KubeletFiles) -> None:
    write(files, json.dumps({"kubeletconfig": {"memoryThrottlingFactor": 0.5}}))
    assert read(files).memory_throttling_factor == 0.5
    write(files, None, one="kubeletconfig: {memoryThrottlingFactor: 0.9}\n")
    assert read(files).memory_throttling_factor == 0.5  # no kubelet takes this for its own
    write(files, "kubeletconfig: 3\n")
    with pytest.raises(KubeletConfigError, match="not a mapping"):
        files.read()


# -- what is no configuration ------------------------------------------------------------------------


def told(files: KubeletFiles) -> str:
    """What a reader says of them; it never raises."""
    reader = OwnershipReader(files)
    reader.read()
    assert reader.problem is not None
    with pytest.raises(KubeletConfigError):
        files.read()
    return reader.problem


GARBAGE = [
    "- a\n", "3", "a: [", "featureGates: 3\n", "a: 1\na: 2\n", "memoryThrottlingFactor: x\n",
    "a: b\n---\nc: d\n", b"\xff\xfe", b"\x00", "[" * 100_000, "- " * 50_000, "a: 2001-99-99",
    "a: !!bool perhaps", "a: !!timestamp then", "a: !!set [1]", "a: " + "9" * 5000, "&a [*a]",
    "featureGates: &a {A: *a}", "cpuManagerPolicy: [static]", "1: 2", "x" * (256 << 10),
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: repr(text[:20]))
def test_an_invalid_configuration_is_reported_with_its_file(files: KubeletFiles, text: str | bytes) -> None:
    write(files, text)
    assert "config.yaml" in told(files)
    write(files, "", one="", two=text, three="")
    assert "two.conf" in told(files)


@given(st.binary() | st.text("{}[]:-,&*!?|>'\"#%@` \n\tabfnu0189.~<").map(str.encode))
@example(b"<<: &a {<<: *a}")
def test_no_bytes_do_harm(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = KubeletFiles(f"{directory}/config.yaml", f"{directory}/conf.d")
        write(files, factor(1), one=text)
        with contextlib.suppress(KubeletConfigError):
            assert files.read() is not None
        OwnershipReader(files).read()


def test_many_branches_of_a_small_file_are_not_walked(files: KubeletFiles) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 60)]
    bomb = "\n".join([*lines, "featureGates: {A: true}"])
    write(files, bomb, one=bomb, two=bomb)
    assert read(files).feature_gates == {"A": True}
    write(files, None, three=bomb.replace("{A: true}", "*a59"))
    assert "three.conf" in told(files)


def test_files_together_have_a_largest_size(files: KubeletFiles) -> None:
    half = "#" * (kubeletconfig.LARGEST // 2)
    write(files, half, one=half)
    assert files.read() is not None
    write(files, None, two="#")
    assert "two.conf cannot be read: with the files before it" in told(files)


def test_a_directory_has_a_largest_size(files: KubeletFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeletconfig, "MOST_ENTRIES", 3)
    write(files, None, a="", b__c="")
    assert len(names(files)) == 2
    write(files, None, b__d="")
    assert "more than 3 entries" in told(files)


def links(directory: str) -> Iterator[tuple[str, str]]:
    """Each way in which a drop-in is no file, and what is said of it."""
    yield "/nowhere", "not a file, or removed"
    yield directory, "not a file, or removed"
    yield "one.conf", "cannot be read: "
    yield "/dev/zero", "not a file, or removed"


@pytest.mark.parametrize("which", range(4))
def test_broken_links_are_reported(files: KubeletFiles, which: int) -> None:
    os.mkdir(files.drop_in_dir)
    to, said = list(links(files.drop_in_dir))[which]
    os.symlink(to, os.path.join(files.drop_in_dir, "one.conf"))
    text = told(files)
    assert "one.conf" in text
    assert said in text


def test_a_pipe_does_not_block(files: KubeletFiles) -> None:
    os.mkdir(files.drop_in_dir)
    os.mkfifo(os.path.join(files.drop_in_dir, "one.conf"))
    assert "one.conf cannot be read" in told(files)


def test_links_to_files_are_followed_and_links_to_directories_are_not(
    files: KubeletFiles, tmp_path: Path
) -> None:
    write(files, None, sub__one=factor(1))
    os.symlink(files.drop_in_dir, os.path.join(files.drop_in_dir, "sub", "loop"))
    (tmp_path / "elsewhere").write_text(factor(2))
    os.symlink(tmp_path / "elsewhere", os.path.join(files.drop_in_dir, "sub", "two.conf"))
    assert names(files) == ["sub/one.conf", "sub/two.conf"]
    assert read(files).memory_throttling_factor == 2


def test_deep_directories_are_reported(files: KubeletFiles) -> None:
    place = os.getcwd()
    os.mkdir(files.drop_in_dir)
    try:
        os.chdir(files.drop_in_dir)
        for _ in range(30):  # longer together than a path may be
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
    finally:
        os.chdir(place)
    assert "File name too long" in told(files)


def test_a_file_in_place_of_the_directory_is_reported(files: KubeletFiles) -> None:
    Path(files.drop_in_dir).write_text("")
    assert "conf.d cannot be read" in told(files)


def test_odd_names_cannot_forge_lines(files: KubeletFiles) -> None:
    os.mkdir(files.drop_in_dir)
    for name in (b"a\nb.conf", b"\xff.conf"):
        path = os.path.join(os.fsencode(files.drop_in_dir), name)
        with open(path, "wb") as file:
            file.write(b"[")
        said = told(files)
        assert "\n" not in said
        said.encode()
        os.unlink(path)


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text(max_size=3))))
def test_unknown_fields_are_none_of_our_business(fields: dict[str, Any]) -> None:
    fields.pop("kubeletconfig", None)
    assert parse(fields, "test") == KubeletConfig()
