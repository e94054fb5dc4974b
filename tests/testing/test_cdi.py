"""Directories as a runtime reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drakit.testing.cdi import Catalog, UnresolvableError
from drakit.wire.cdi.spec import CdiDevice, ContainerEdits, encode_spec, make_spec


def put(path: Path, *devices: str, kind: str = "v/c", value: str = "1", common: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    edits = {each: ContainerEdits(env=(f"{each.upper()}={value}",)) for each in devices}
    spec = make_spec(
        kind,
        [CdiDevice(name=each, container_edits=edits[each]) for each in devices],
        container_edits=ContainerEdits(env=(common,)) if common else ContainerEdits(),
    )
    path.write_bytes(encode_spec(spec))


def env(catalog: Catalog, *names: str) -> list[str]:
    return [each for edits in catalog.edits_for(names) for each in edits.env]


def test_devices_of_all_files_resolve(tmp_path: Path) -> None:
    put(tmp_path / "a.json", "x", "y", common="ALL=1")
    put(tmp_path / "b.json", "z")
    catalog = Catalog.read([str(tmp_path)])
    assert env(catalog, "v/c=y", "v/c=z", "v/c=x") == ["ALL=1", "Y=1", "Z=1", "X=1"]
    assert not catalog.problems


def test_yaml_is_read_too(tmp_path: Path) -> None:
    document = {
        "cdiVersion": "0.5.0",
        "kind": "v/c",
        "devices": [{"name": "x", "containerEdits": {"env": ["X=1"]}}],
    }
    (tmp_path / "a.yaml").write_text(json.dumps(document))
    (tmp_path / "b.yaml").write_text("a: [")
    (tmp_path / "c.yaml").write_text("just text")
    catalog = Catalog.read([str(tmp_path)])
    assert env(catalog, "v/c=x") == ["X=1"]
    assert set(catalog.problems) == {str(tmp_path / "b.yaml"), str(tmp_path / "c.yaml")}


def test_an_invalid_file_affects_only_its_own_devices(tmp_path: Path) -> None:
    put(tmp_path / "good.json", "x")
    (tmp_path / "bad.json").write_text('{"cdiVersion": "9.9.9"}')
    (tmp_path / "notes.txt").write_text("ignored")
    (tmp_path / "deep.json").mkdir()
    put(tmp_path / "deep" / "a.json", "hidden")
    catalog = Catalog.read([str(tmp_path), str(tmp_path / "missing")])
    assert list(catalog.devices) == ["v/c=x"]
    assert list(catalog.problems) == [str(tmp_path / "bad.json")]


def test_all_or_nothing(tmp_path: Path) -> None:
    put(tmp_path / "a.json", "x")
    with pytest.raises(UnresolvableError, match="v/c=nope, w/c=x") as caught:
        Catalog.read([str(tmp_path)]).edits_for(["v/c=x", "v/c=nope", "w/c=x"])
    assert caught.value.names == ("v/c=nope", "w/c=x")


def test_a_device_defined_by_two_files_does_not_resolve(tmp_path: Path) -> None:
    put(tmp_path / "a.json", "x", "y")
    put(tmp_path / "b.json", "x")
    catalog = Catalog.read([str(tmp_path)])
    assert list(catalog.devices) == ["v/c=y"]
    assert "also in" in catalog.problems[str(tmp_path / "b.json")]


def test_later_directories_override_earlier_ones(tmp_path: Path) -> None:
    put(tmp_path / "etc" / "a.json", "x", value="static")
    put(tmp_path / "run" / "a.json", "x", value="dynamic")
    both = [str(tmp_path / "etc"), str(tmp_path / "run")]
    assert env(Catalog.read(both), "v/c=x") == ["X=dynamic"]
    assert env(Catalog.read(reversed(both)), "v/c=x") == ["X=static"]


def test_a_path_that_is_not_a_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    catalog = Catalog.read([str(tmp_path / "file")])
    assert list(catalog.problems) == [str(tmp_path / "file")]
