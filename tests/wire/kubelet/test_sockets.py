"""Names of sockets: the Go helper's scheme, always short enough, never shared by two instances."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from drakit.wire.kubelet.sockets import (
    LONGEST_PATH,
    SocketPathError,
    bind,
    registration_socket,
    remove_if_dead,
    service_socket,
)

REGISTRY = "/var/lib/kubelet/plugins_registry"
UID = "3f6b2a10-8c1d-4e0e-9d5b-0c8f5a7e2b11"


def test_the_three_registration_names():
    # Worked out with openssl dgst and base64, from the UID and from driver NUL UID.
    assert registration_socket(REGISTRY, "d.example", UID) == f"{REGISTRY}/d.example-{UID}-reg.sock"
    middle = "m" * 50
    assert registration_socket(REGISTRY, middle, UID) == f"{REGISTRY}/{middle}-R7ufQcovb8o-reg.sock"
    long = "l" * 63
    hashed = "dra-UG5U3o7vrOph356un5Wwyw-reg.sock"
    assert registration_socket(REGISTRY, long, UID) == f"{REGISTRY}/{hashed}"


def test_single_instance_names():
    assert registration_socket(REGISTRY, "d", None) == f"{REGISTRY}/d-reg.sock"
    assert service_socket("/p/d", None) == "/p/d/dra.sock"


@pytest.mark.parametrize("length", [1, 30, 47, 63])
def test_the_longest_driver_name_fits_below_the_default_root(length):
    driver = "d" * length
    assert len(registration_socket(REGISTRY, driver, UID)) <= LONGEST_PATH
    assert len(service_socket(f"/var/lib/kubelet/plugins/{driver}", UID)) <= LONGEST_PATH


names = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True)
directories = st.text("abcdefghij/", min_size=1, max_size=90).map(lambda text: f"/{text}")


@given(directories, names, st.uuids(), st.uuids())
def test_names_fit_or_are_rejected_and_differ_between_instances(directory, driver, one, other):
    assume(one != other)
    for make in (
        lambda uid: registration_socket(directory, driver, uid),
        lambda uid: service_socket(directory, uid),
    ):
        try:
            paths = [make(str(one)), make(str(other))]
        except SocketPathError as error:
            assert directory in str(error)
            continue
        assert all(len(path) <= LONGEST_PATH for path in paths)
        assert paths[0] != paths[1]
        assert not os.path.basename(paths[0]).startswith(".")


def test_the_limit_is_the_kernels():
    directory = "/tmp/" + "x" * (LONGEST_PATH - len("/tmp//dra.sock"))
    path = service_socket(directory, None)
    assert len(path) == LONGEST_PATH
    os.mkdir(directory)
    try:
        bound = bind(path)
        bound.listening.close()
        bound.remove_file()
    finally:
        os.rmdir(directory)
    with pytest.raises(SocketPathError, match="1 bytes less"):
        service_socket(directory + "x", None)


def test_a_full_backlog_is_not_a_dead_socket(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        waiting = []
        while True:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            waiting.append(client)
            if client.connect_ex(path):
                break
        assert not remove_if_dead(path)
        for client in waiting:
            client.close()
    assert remove_if_dead(path)
    assert not remove_if_dead(path)
