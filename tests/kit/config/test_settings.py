"""Configuration: later sources win, nothing unknown is accepted, errors say where and what."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import Struct
from drakit.kit.config.options import HostOptions, listen_address, node_name
from drakit.kit.config.settings import ConfigurationError, did_you_mean, load, schema, setting


class Config(Struct, frozen=True):
    group_by: Annotated[Literal["numanode", "socket"], setting("how to group", flags=["--old-group-by"])] = (
        "numanode"
    )
    reserved_cpus: Annotated[str, setting("a list", env=["RESERVED"])] = msgspec.field(
        name="reservedCPUs", default=""
    )
    lift_quota: Annotated[bool, setting("yes or no")] = True
    wait_seconds: Annotated[float, setting("how long")] = 1.5
    count: Annotated[int, setting("how many")] = 1
    guard: Annotated[Literal["off", "some", "all"], setting("whom to guard")] = "some"


def read(*arguments: str, file: Path | None = None, **environ: str) -> Config:
    args = [*arguments, *(["--config", str(file)] if file else [])]
    return load(Config, argparse.ArgumentParser(prog="x"), args, environ, prefix="X").config


def test_defaults() -> None:
    assert read() == Config()


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("groupBy: socket\nreservedCPUs: '0-1'\ncount: 2\n")
    assert read(file=file) == Config(group_by="socket", reserved_cpus="0-1", count=2)
    assert read(file=file, X_COUNT="3").count == 3
    assert read("--count", "4", file=file, X_COUNT="3").count == 4
    assert read(X_CONFIG=str(file)).reserved_cpus == "0-1"
    assert read(RESERVED="7").reserved_cpus == "7"
    assert read("--old-group-by=socket").group_by == "socket"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("no", False), ("0", False), ("ON", True)])
def test_switches(text: str, value: bool) -> None:
    assert read(f"--lift-quota={text}").lift_quota is value
    assert read(X_LIFT_QUOTA=text).lift_quota is value
    assert read("--lift-quota").lift_quota is True


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("groupby: socket", r"unknown setting 'groupby'; did you mean 'groupBy'\?"),
        ("reservedCpu: '1'", r"did you mean 'reservedCPUs'\?"),
        ("color: red", r"unknown setting 'color' \(known: count, groupBy"),
        ("reservedCPUs: 0", "reservedCPUs: Expected `str`, got `int` \\(quote it"),
        ("groupBy: sockets", "groupBy: Invalid enum value 'sockets'"),
        ("count: 1\ncount: 2", "line 2: 'count' is given twice"),
        ("- 1", "expected settings"),
        ("a: [", "c.yaml: not valid YAML: while parsing"),
        ("? {a: b}\n: c", "c.yaml"),
        ("[" * 3000, "c.yaml"),
    ],
)
def test_an_invalid_file_is_reported_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read(file=file)


def test_json_files_and_their_errors(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"count": 5}')
    assert read(file=file).count == 5
    file.write_text("{")
    with pytest.raises(ConfigurationError, match="is not valid JSON"):
        read(file=file)
    with pytest.raises(ConfigurationError, match="cannot read the configuration"):
        read(file=tmp_path / "missing.json")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot read the configuration"):
        read(file=file)
    file.write_text("[1]" + " " * (1 << 20))
    with pytest.raises(ConfigurationError, match="is larger than"):
        read(file=file)


def test_errors_name_the_invalid_flag_or_variable() -> None:
    with pytest.raises(
        ConfigurationError, match=r"--group-by: 'sockets' is not valid; did you mean 'socket'\?"
    ):
        read("--group-by", "sockets")
    with pytest.raises(ConfigurationError, match=r"\$X_COUNT: 'many' is not valid"):
        read(X_COUNT="many")
    with pytest.raises(ConfigurationError, match="--lift-quota: 'perhaps' is neither"):
        read("--lift-quota=perhaps")


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("--old-group-by", "[reservedCPUs, $RESERVED]", "default 1.5", "{numanode,socket}"):
        assert part in shown


def test_an_unquoted_off_means_off_although_yaml_reads_false(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text in ("off", "false", '"off"'):
        file.write_text(f"guard: {text}\n")
        assert read(file=file).guard == "off"
    file.write_text("guard: on\n")
    with pytest.raises(ConfigurationError, match="guard"):
        read(file=file)


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("# nothing yet\n")
    assert read(file=file) == Config()


def test_the_schema_knows_every_key_and_rejects_others() -> None:
    made = schema(Config)
    assert set(made["properties"]) == {
        "groupBy",
        "reservedCPUs",
        "liftQuota",
        "waitSeconds",
        "count",
        "guard",
    }
    assert made["additionalProperties"] is False
    assert made["properties"]["groupBy"]["enum"] == ["numanode", "socket"]


@given(st.text(max_size=30))
def test_suggestions_never_fail(word: str) -> None:
    assert did_you_mean(word, ["groupBy", "count"])


@given(
    st.dictionaries(
        st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(), st.lists), max_size=3
    )
)
def test_any_document_is_a_configuration_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("c") / "c.json"
    file.write_bytes(msgspec.json.encode(document))
    try:
        assert isinstance(read(file=file), Config)
    except ConfigurationError as error:
        assert str(file) in str(error)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"kubelet_root_dir": "var"}, "kubeletRootDir"),
        ({"cdi_dir": ""}, "cdiDir"),
        ({"nri_index": "1"}, "nriIndex"),
        ({"nri_index": "٣٣"}, "nriIndex"),
        ({"verify_seconds": -1.0}, "verifySeconds"),
        ({"rediscover_seconds": float("nan")}, "rediscoverSeconds"),
    ],
)
def test_impossible_options_are_rejected_by_their_key(wrong: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        HostOptions(**wrong)  # type: ignore[arg-type]


def test_the_checkpoint_is_in_the_plugin_directory_by_default() -> None:
    assert HostOptions().checkpoint_dir("dra.cpu") == "/var/lib/kubelet/plugins/dra.cpu/claims"
    assert HostOptions(state_dir="/s").checkpoint_dir("dra.cpu") == "/s"


def test_node_name_downward_api_first_then_flag_then_host() -> None:
    given_flag = HostOptions(hostname_override=" Flag ")
    assert node_name(given_flag, {"NODE_NAME": "api"}) == "api"
    assert node_name(given_flag, {}) == "flag"
    assert node_name(HostOptions(), {})
    with pytest.raises(ConfigurationError, match="is not a valid node name"):
        node_name(HostOptions(hostname_override="a b"), {})


def test_listen_addresses() -> None:
    assert listen_address(":8080") == (None, 8080)
    assert listen_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert listen_address("[::1]:99") == ("::1", 99)
    for wrong in ("", "8080", "host:", ":http", ":70000"):
        with pytest.raises(ConfigurationError):
            listen_address(wrong)
