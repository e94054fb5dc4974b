from __future__ import annotations

from urllib.parse import quote as reference_quote
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.kube import ConfigError, Endpoint
from drakit.wire.kube.access.endpoint import query, quote


@given(st.text())
def test_quote_is_that_of_the_library(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert quote(text) == reference_quote(text, safe="")


def test_query_leaves_out_what_is_empty() -> None:
    assert query([("a", "1"), ("b", ""), ("c", "x=y,z")]) == "?a=1&c=x%3Dy%2Cz"
    assert query([("a", "")]) == ""


@pytest.mark.parametrize(
    ("url", "authority", "prefix"),
    [
        ("https://10.0.0.1:6443", "10.0.0.1:6443", ""),
        ("https://10.0.0.1", "10.0.0.1", ""),
        ("https://host:443/", "host", ""),
        ("HTTP://host:8080/k8s/clusters/c-1/", "host:8080", "/k8s/clusters/c-1"),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", ""),
        ("https://[fd00::1]", "[fd00::1]", ""),
    ],
)
def test_parse(url: str, authority: str, prefix: str) -> None:
    endpoint = Endpoint.parse(url)
    assert endpoint.authority == authority
    assert endpoint.prefix == prefix
    assert endpoint.secure == url.lower().startswith("https")
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6443",
        "ftp://host",
        "https://",
        "https://:6443",
        "https://host:0",
        "https://host:65536",
        "https://host:x",
        "https://host:²",
        "https://user@host",
        "https://host/?x",
        "https://host/#x",
        "https://[fd00::1",
        "https://[fd00::1]x",
        "https://ho st",
        "https://host/\r\nX: y",
        "https://hösť",
    ],
)
def test_parse_rejects(url: str) -> None:
    with pytest.raises(ConfigError, match="server"):
        Endpoint.parse(url)


@given(st.text(max_size=30))
def test_parse_never_lets_anything_through_that_splits_a_request(tail: str) -> None:
    try:
        endpoint = Endpoint.parse("https://host" + tail)
    except ConfigError:
        return
    assert not any(sign.isspace() or ord(sign) < 33 for sign in endpoint.authority + endpoint.prefix)
    assert urlsplit(str(endpoint)).hostname == endpoint.host.lower()
