"""The secret of a run: readers, and keys derived from it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cotswold.errors import UserError
from cotswold.host import Token, is_signed, read_token, sign, token_of

TOKEN = Token("0123456789abcdef" * 4)
KEY = TOKEN.derive("a test")


def test_a_token_is_never_shown() -> None:
    assert TOKEN.text not in repr(TOKEN) and TOKEN.text not in str(TOKEN)


def test_two_tokens_differ_and_so_do_the_keys_for_two_purposes() -> None:
    assert Token.new() != Token.new()
    assert len({TOKEN.derive("launch"), TOKEN.derive("servers"), Token.new().derive("launch")}) == 3
    assert TOKEN.derive("launch") == Token(TOKEN.text).derive("launch")


def test_a_key_is_what_openssl_makes_of_the_token() -> None:
    # printf 'cotswold key: launch' | openssl dgst -sha256 -hmac 0123...
    assert TOKEN.derive("launch").hex().startswith("9ec0fffb136a7983")


@pytest.mark.parametrize("text", ["", "short", "x" * 31, "with a blank " * 4, "x" * 1025, "ä" * 40])
def test_what_is_no_token_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(UserError, match="openssl rand -hex 32") as raised:
        Token(text)
    assert not text or text not in str(raised.value)


def test_a_token_comes_by_the_environment() -> None:
    assert token_of({"COTSWOLD_TOKEN": f" {TOKEN.text}\n"}) == TOKEN
    assert token_of({}) is None and token_of({"COTSWOLD_TOKEN": ""}) is None


def test_a_signature_holds_for_its_key_and_its_parts_in_their_order_alone() -> None:
    signature = sign(KEY, b"beat/1", b"7")
    assert is_signed(KEY, signature, b"beat/1", b"7")
    for parts in (
        (b"beat/1", b"8"),
        (b"7", b"beat/1"),
        (b"beat/17", b""),
        (b"beat/17",),
        (b"beat/1", b"7", b""),
    ):
        assert not is_signed(KEY, signature, *parts)
    assert not is_signed(TOKEN.derive("another"), signature, b"beat/1", b"7")
    for wrong in (b"", signature[:-1], b"\xff" * 64, signature.upper()):
        assert not is_signed(KEY, wrong, b"beat/1", b"7")


def test_whoever_asks_first_makes_the_file_and_all_find_the_same_token(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "token"
    before = os.umask(0)
    try:
        token = read_token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_token(path) == token
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_of_two_that_make_the_file_at_once_both_use_the_firsts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "token", os.link
    firsts: list[Token] = []

    def late(*names: Path) -> None:  # between our look and our link another one makes it
        monkeypatch.setattr(os, "link", link)
        firsts.append(read_token(path))
        link(*names)

    monkeypatch.setattr(os, "link", late)
    assert read_token(path) == firsts[0]
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    read_token(path)
    path.chmod(mode)
    with pytest.raises(UserError, match=f"other users.*chmod 600 {path}"):
        read_token(path)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_token(tmp_path / "token")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UserError, match="belongs to another user"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_never_followed(tmp_path: Path, there: bool) -> None:
    if there:
        read_token(tmp_path / "elsewhere")
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="symbolic link"):
        read_token(tmp_path / "token")
    assert (tmp_path / "elsewhere").exists() is there


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch(0o600)
    with pytest.raises(UserError, match=r"holds no token.*openssl rand -hex 32 > .*token"):
        read_token(tmp_path / "token")


def test_where_no_file_can_be_made_the_variable_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(UserError, match="set COTSWOLD_TOKEN to the same secret"):
        read_token(tmp_path / "runs" / "token")


def test_a_folder_that_is_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("a disk that is not there")
    with pytest.raises(UserError, match=r"token file .*runs/token \(File exists\); set COTSWOLD_TOKEN"):
        read_token(tmp_path / "runs" / "token")
