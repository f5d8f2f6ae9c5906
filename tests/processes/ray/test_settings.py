"""Requests to Ray: its version, its token, the address of its head."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket

import pytest
from tests.ports import free_ports

from cotswold.errors import MissingExtraError, UserError
from cotswold.host import Token
from cotswold.processes.ray.node import join_head, start_head
from cotswold.processes.ray.settings import fingerprint, ray_environ, reachable, require_ray

TOKEN, OTHER = Token("0123456789abcdef" * 4), Token("fedcba9876543210" * 4)


def test_where_there_is_no_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'\.\[cluster\]' .*, or leave --address out"):
        require_ray()


@pytest.mark.parametrize(("version", "is_enough"), [("2.51.9", False), ("2.52.0", True), ("3.0.0rc1", True)])
def test_a_ray_without_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, is_enough: bool
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if is_enough:
        require_ray()
    else:
        with pytest.raises(MissingExtraError, match=r"Ray 2.51.9 has no tokens.*pip install .*ray>=2.52"):
            require_ray()


def test_rays_token_is_made_from_ours_and_tells_nothing_of_it() -> None:
    settings = ray_environ(TOKEN, {})
    assert settings["RAY_AUTH_MODE"] == "token" and settings["RAY_USAGE_STATS_ENABLED"] == "0"
    assert settings["RAY_AUTH_TOKEN"] == ray_environ(TOKEN, {})["RAY_AUTH_TOKEN"]
    assert settings["RAY_AUTH_TOKEN"] != ray_environ(OTHER, {})["RAY_AUTH_TOKEN"]
    assert TOKEN.text not in str(settings)


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_that_the_user_has_given_ray_is_kept(name: str) -> None:
    assert "RAY_AUTH_TOKEN" not in ray_environ(TOKEN, {name: "the user's"})


def test_a_ray_that_lets_everybody_in_is_refused() -> None:
    with pytest.raises(UserError, match="RAY_AUTH_MODE is 'disabled'"):
        ray_environ(TOKEN, {"RAY_AUTH_MODE": "disabled"})


def test_a_fingerprint_tells_tokens_apart() -> None:
    assert len({fingerprint(each) for each in (None, TOKEN, OTHER)}) == 3
    assert fingerprint(TOKEN) == fingerprint(TOKEN) and fingerprint(TOKEN) not in TOKEN.text


@pytest.mark.parametrize("address", ["", ":6379", "host:", "host:ray", "host:0", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="is not an address; give HOST:PORT"):
        reachable(address)


def test_an_address_at_which_nobody_listens_is_named() -> None:
    with free_ports(1) as (port,):
        with socket.create_server(("127.0.0.1", port)):
            assert reachable(f"127.0.0.1:{port}") == f"127.0.0.1:{port}"
        with pytest.raises(UserError, match=rf"no process answers at 127.0.0.1:{port} \(Connection refused"):
            reachable(f"127.0.0.1:{port}")


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")
def test_a_machine_that_reaches_no_head_is_told_at_once() -> None:
    with pytest.raises(UserError, match=r"no process answers at 127\.0\.0\.1:1"):
        join_head("127.0.0.1:1", TOKEN)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")
@pytest.mark.parametrize("ports", [(20000, 20030), (0, 99), (65500, 65600), (300, 200)])
def test_ports_that_are_none_or_too_few_are_refused(ports: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=rf"ports {ports[0]} to {ports[1]}: Ray needs 32 per machine"):
        start_head(TOKEN, ports=ports)
