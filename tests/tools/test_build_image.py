"""The image built without an engine: forbidden files are detected, and both builds are equal."""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_image", ROOT / "tools/build_image.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A few files of the image."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/python3.13").write_text("")
    (tmp_path / "usr/bin/python3.13").chmod(0o755)
    (tmp_path / "bin").symlink_to("usr/bin")
    return tmp_path


def test_the_files_of_an_image_are_accepted(builder: ModuleType, tree: Path) -> None:
    builder.check_content(tree)


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_setuid_program_is_detected(builder: ModuleType, tree: Path, mode: int) -> None:
    (tree / "usr/bin/su").write_text("")
    (tree / "usr/bin/su").chmod(mode)
    with pytest.raises(SystemExit, match="/usr/bin/su is a setuid"):
        builder.check_content(tree)


def test_a_shell_is_detected(builder: ModuleType, tree: Path) -> None:
    (tree / "usr/bin/sh").symlink_to("dash")
    with pytest.raises(SystemExit, match="/usr/bin/sh is a shell"):
        builder.check_content(tree)


def test_records_name_no_program_of_the_build_machine(builder: ModuleType, tmp_path: Path) -> None:
    record = tmp_path / "drakit-0.1.0.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text("../../bin/drakit,sha256=x,236\ndrakit/__init__.py,sha256=y,7\n")
    builder.forget_programs(tmp_path)
    assert record.read_text() == "drakit/__init__.py,sha256=y,7\n"


def test_the_containerfile_runs_the_same_builder_into_an_empty_image() -> None:
    stages = re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)
    assert "tools/build_image.py --rootfs /image" in stages[-2]
    final = [line.split() for line in stages[-1].splitlines() if line]
    assert final[0] == ["scratch"]
    assert [words for words in final if words[0] in ("COPY", "ADD", "RUN")] == [
        ["COPY", "--from=build", "/image", "/"]
    ]


def test_the_containerfile_copies_all_that_the_builder_reads() -> None:
    copied = {
        word.rstrip("/")
        for line in CONTAINERFILE.splitlines()
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert {"requirements.lock", "pyproject.toml", "README.md", "LICENSE", "src"} <= copied
    for name in copied:
        assert (ROOT / name).exists(), name


def test_both_images_start_in_the_same_way(builder: ModuleType, tree: Path, tmp_path: Path) -> None:
    output = tmp_path / "image.tar"
    builder.write_image(builder.layer_of(tree), "amd64", "drakit:0.1.0", output)
    with tarfile.open(output) as archive:
        (entry,) = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(archive.extractfile(entry["Config"]))["config"]  # type: ignore[arg-type]
    (variables,) = re.findall(r"^ENV (.*)$", CONTAINERFILE, re.MULTILINE)
    assert variables.split() == config["Env"]
    (command,) = re.findall(r"^CMD (.*)$", CONTAINERFILE, re.MULTILINE)
    assert json.loads(command) == config["Cmd"]
    assert f"WORKDIR {config['WorkingDir']}\n" in CONTAINERFILE
