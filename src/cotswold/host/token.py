"""The secret that all processes of a run have in common: how it reaches them, and what is made of it.

Knows: HMAC-SHA256, the variable and the file in which a token travels. Does not know: what is signed, who
sends it where.

The environment of a process can be read by its own user alone, and so can the file: whoever knows the token
is this user. The token itself signs nothing: each use derives a key of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import UserError
from cotswold.files.durable import create_file
from cotswold.files.opening import open_file

VARIABLE = "COTSWOLD_TOKEN"
"""The environment variable in which a token is handed on."""
POOL_VARIABLE = "COTSWOLD_POOL_TOKEN"
"""That in which whoever starts ranks with a secret of their own hands on the token of a pool of data servers;
empty for none."""
CLUSTER_VARIABLE = "COTSWOLD_CLUSTER_TOKEN"
"""That in which processes of a run are handed the token of a cluster that outlives it."""
_BYTES = 32
_FORM = re.compile(r"[!-~]{32,1024}")
_FILE_BYTES = 1 << 14
_OTHERS = 0o077


@dataclass(frozen=True)
class Token:
    """A secret text of at least 32 printable characters without blanks; raises UserError for any other."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if _FORM.fullmatch(self.text) is None:
            raise UserError(
                f"{VARIABLE} has {len(self.text)} characters, or others than a token's; set it to 32 or more "
                "letters and digits by chance, such as those of: openssl rand -hex 32"
            )

    @classmethod
    def new(cls) -> Token:
        """A token that nobody has had before."""
        return cls(secrets.token_hex(_BYTES))

    def derive(self, purpose: str) -> bytes:
        """The key, 32 bytes, for one purpose; nothing about the token or other keys can be learnt from it."""
        return hmac.digest(self.text.encode(), b"cotswold key: " + purpose.encode(), hashlib.sha256)

    @property
    def fingerprint(self) -> str:
        """Eight characters by which a token is told from others, and which are no secret."""
        return self.derive("fingerprint").hex()[:8]


def token_of(environ: Mapping[str, str]) -> Token | None:
    """The token that this process was started with; None if with none."""
    text = environ.get(VARIABLE, "").strip()
    return Token(text) if text else None


def pool_token_of(environ: Mapping[str, str]) -> Token | None:
    """The token of a pool of data servers, where it is another one than this process was started with, else
    that; None if there is none."""
    text = environ.get(POOL_VARIABLE, environ.get(VARIABLE, "")).strip()
    return Token(text) if text else None


def cluster_token_of(environ: Mapping[str, str]) -> Token | None:
    """The token of a cluster that outlives runs, where it is another one than this process was started with,
    else that; None if there is none."""
    text = environ.get(CLUSTER_VARIABLE, environ.get(VARIABLE, "")).strip()
    return Token(text) if text else None


def handed_to_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for ranks that know each other by a new token; that of a pool is handed on."""
    pool = environ.get(POOL_VARIABLE, environ.get(VARIABLE, ""))
    return {**environ, VARIABLE: Token.new().text, POOL_VARIABLE: pool}


def token_in(path: Path) -> Token:
    """The first of `tokens_in`."""
    return tokens_in(path)[0]


def tokens_in(path: Path) -> tuple[Token, ...]:
    """The tokens in the file at ``path``, one a line; whoever asks first makes it, with one, for its user's
    eyes alone.

    Raises UserError where the file is a symbolic link, belongs to another user, can be read or written by
    others, or holds anything but tokens, and where it can be neither read nor made.
    """
    with suppress(FileNotFoundError):
        return read_tokens(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was first; all use that one's
            create_file(path, Token.new().text.encode() + b"\n", mode=0o600)
        return read_tokens(path)
    except OSError as error:
        raise UserError(
            f"the file with the token, {path}, cannot be made ({error.strerror}); "
            f"set {VARIABLE} to the same secret for all processes of the run"
        ) from error


def read_tokens(path: Path) -> tuple[Token, ...]:
    """As `tokens_in`, but raises FileNotFoundError where there is no file."""
    try:
        file = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        if found.st_uid != os.geteuid():
            raise _refused(path, "belongs to another user")
        if found.st_mode & _OTHERS:
            raise UserError(
                f"the file with the token, {path}, can be read or written by other users; "
                f"if the secret in it is yours alone: chmod 600 {shlex.quote(str(path))}"
            )
        said = stream.read(_FILE_BYTES).decode(errors="replace").split("\n")
    lines = [each.strip() for each in said if each.strip()]
    if not lines or not all(_FORM.fullmatch(each) for each in lines):
        raise UserError(
            f"the file with the token, {path}, holds no token, which is one line of 32 or more letters and "
            f"digits by chance; write one: openssl rand -hex 32 > {shlex.quote(str(path))}"
        )
    return tuple(map(Token, lines))


def sign(key: bytes, *parts: bytes) -> bytes:
    """The signature (64 hexadecimal digits) of these parts in this order."""
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, framed, hashlib.sha256).hexdigest().encode()


def is_signed(key: bytes, signature: bytes, *parts: bytes) -> bool:
    """Whether somebody with ``key`` made this signature of these parts; takes as long whatever is wrong."""
    return hmac.compare_digest(sign(key, *parts), signature)


def _refused(path: Path, why: str) -> UserError:
    return UserError(
        f"the file with the token, {path}, {why}; give a file of this user's own, or set {VARIABLE} to the "
        "same secret for all processes of the run"
    )
