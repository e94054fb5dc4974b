from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from drakit.core import atomicfile
from drakit.core.bootrecord import BootRecord, boot_id


class Document(msgspec.Struct, frozen=True):
    boot: str
    values: tuple[int, ...] = ()


@pytest.fixture
def record(tmp_path: Path) -> BootRecord[Document]:
    return BootRecord(str(tmp_path / "deep/record.json"), Document, "this boot")


def test_a_saved_document_is_loaded_in_the_same_boot_only(record: BootRecord[Document]) -> None:
    record.save(Document("this boot", (1, 2)))
    assert record.load() == Document("this boot", (1, 2))
    assert BootRecord(record.path, Document, "next boot").load() is None


def test_a_missing_file_is_an_empty_record(record: BootRecord[Document]) -> None:
    assert record.load() is None
    record.remove()
    record.save(Document("this boot"))
    record.remove()
    assert record.load() is None
    assert not os.path.exists(record.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"values": []}', '{"boot": 1}'])
def test_an_invalid_file_is_a_value_error(record: BootRecord[Document], text: str) -> None:
    record.save(Document("this boot"))
    Path(record.path).write_text(text)
    with pytest.raises(ValueError):
        record.load()


def test_a_file_that_cannot_be_read_is_an_os_error(record: BootRecord[Document]) -> None:
    os.makedirs(record.path)
    with pytest.raises(OSError):
        record.load()


def test_an_unsynced_save_replaces_the_file_in_one_step(record: BootRecord[Document]) -> None:
    record.save(Document("this boot", (1,)))
    steps: list[str] = []
    atomicfile.observers.append(lambda name, _path: steps.append(name))
    try:
        record.save_unsynced(Document("this boot", (2,)))
    finally:
        atomicfile.observers.pop()
    assert steps == ["create", "rename"]
    assert record.load() == Document("this boot", (2,))


def test_a_failed_unsynced_save_leaves_the_old_file_and_no_other(
    record: BootRecord[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    record.save(Document("this boot", (1,)))

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        record.save_unsynced(Document("this boot", (2,)))
    assert record.load() == Document("this boot", (1,))
    assert os.listdir(os.path.dirname(record.path)) == ["record.json"]


def test_the_boot_id_is_read_from_proc(tmp_path: Path) -> None:
    place = tmp_path / "sys/kernel/random"
    place.mkdir(parents=True)
    (place / "boot_id").write_text("0a1b\n")
    assert boot_id(str(tmp_path)) == "0a1b"
    assert boot_id(str(tmp_path / "missing")) == ""
