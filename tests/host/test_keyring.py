"""Keyrings of tokens, and their files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cotswold.errors import UserError
from cotswold.host import Keyring, KeyringFile, Token, read_token

OLD, NEW = Token.new(), Token.new()


def write(path: Path, *tokens: Token, text: str | None = None) -> None:
    """Replace the file like a person."""
    beside = path.with_name("beside")
    beside.touch(0o600)
    beside.write_text("".join(f"{each.text}\n" for each in tokens) if text is None else text)
    beside.replace(path)


def test_a_ring_has_one_to_eight_different_tokens_which_it_does_not_show() -> None:
    ring = Keyring((NEW, OLD))
    assert ring.first == NEW and Keyring.of(OLD) == Keyring((OLD,)) and Keyring.of(ring) is ring
    assert OLD.text not in repr(ring)
    with pytest.raises(UserError, match="twice"):
        Keyring((OLD, OLD))
    for count in (0, 9):
        with pytest.raises(UserError, match=f"{count} tokens are in use at once"):
            Keyring(tuple(Token.new() for _ in range(count)))


def test_fingerprints_tell_tokens_apart_and_are_none_of_the_keys() -> None:
    assert OLD.fingerprint == Token(OLD.text).fingerprint != NEW.fingerprint
    assert len(OLD.fingerprint) == 8 and OLD.fingerprint not in OLD.text
    assert OLD.fingerprint not in OLD.derive("transport").hex()


def test_a_file_has_a_token_a_line_and_is_made_with_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = KeyringFile.create(path).refresh()
    assert len(made.tokens) == 1 and made.first == read_token(path)
    write(path, text=f"\n{NEW.text}\n\n  {OLD.text}\n")
    assert KeyringFile(path).refresh() == Keyring((NEW, OLD))
    assert read_token(path) == NEW


def test_a_file_that_is_not_there_is_said_not_to_be_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        KeyringFile(tmp_path / "token")
    assert not (tmp_path / "token").exists()


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write(path, OLD)
    file = KeyringFile(path)
    for ring in ((OLD, NEW), (NEW, OLD), (NEW,)):
        write(path, *ring)
        assert file.refresh() == Keyring(ring)
    path.write_text(f"{OLD.text}\n")  # in its place, in the same tick of the clock, as long as before
    assert file.refresh() == Keyring((OLD,))
    assert file.take_problem() == ""


def test_a_file_that_nobody_touches_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    write(path, OLD)
    file = KeyringFile(path)
    later = time.time_ns() + 5 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert file.refresh() == Keyring((OLD,))
    monkeypatch.setattr("cotswold.host.keyring.read_tokens", None)  # not to be called
    for _ in range(3):
        assert file.refresh() == Keyring((OLD,))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.unlink(), "has been removed; write the tokens"),
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: write(path, text="no token\n"), "holds no token"),
        (lambda path: write(path, text=""), "holds no token"),
        (lambda path: write(path, OLD, OLD), "twice"),
        (lambda path: write(path, *(Token.new() for _ in range(9))), "9 tokens"),
    ],
)
def test_a_file_that_cannot_be_used_leaves_the_ring_and_is_told_of_once(
    tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    path = tmp_path / "token"
    write(path, NEW, OLD)
    file = KeyringFile(path)
    spoil(path)
    for _ in range(3):
        assert file.refresh() == Keyring((NEW, OLD))
    trouble = file.take_problem()
    assert sentence in trouble and str(path) in trouble
    assert "until then" in trouble and file.take_problem() == ""
    assert file.refresh() == Keyring((NEW, OLD)) and file.take_problem() == ""
    write(path, NEW)
    assert file.refresh() == Keyring((NEW,)) and file.take_problem() == ""
    path.chmod(0o644)
    file.refresh()
    assert "chmod" in file.take_problem()
