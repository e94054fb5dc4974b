"""Generated code is what the .proto files say, the same bytes every time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "generate_protos.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protos", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checked_in_code_is_current(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_a_stale_or_orphaned_file_is_reported_and_repaired(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "SOURCES", tmp_path)
    orphan = tmp_path / "drakit" / "old_pb2.py"
    orphan.parent.mkdir()
    orphan.write_text("")
    assert tool.main(["--check"]) == 1
    reported = capsys.readouterr().err
    assert "src/drakit/wire/nri/nri_pb2.py does not match its .proto" in reported
    assert "src/drakit/old_pb2.py no longer has a .proto" in reported
    assert tool.main([]) == 0
    assert not orphan.exists()
    assert tool.main(["--check"]) == 0
