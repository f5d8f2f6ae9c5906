"""The secret that all processes of a run share: how it is passed on, and keys derived from it.

Knows: HMAC-SHA256, the variable and the file that hold a token. Does not know: what is signed, where messages
go.

Only the user can read the environment of their processes and the file, so a process that knows the token
belongs to this user. The token itself signs nothing: each use derives a separate key.
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
from cotswold.files.safe_open import open_file

VARIABLE = "COTSWOLD_TOKEN"
"""Environment variable that passes on a token."""
POOL_VARIABLE = "COTSWOLD_POOL_TOKEN"
"""Environment variable that passes on the token of a data server pool to ranks that have a separate secret.

Empty for none.
"""
CLUSTER_VARIABLE = "COTSWOLD_CLUSTER_TOKEN"
"""Environment variable that passes on the token of a cluster that outlives the run."""
_BYTES = 32
_FORM = re.compile(r"[!-~]{32,1024}")
_FILE_BYTES = 1 << 14
_OTHERS_MODE = 0o077


@dataclass(frozen=True)
class Token:
    """A secret text of at least 32 printable characters without blanks; raises UserError for any other."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if _FORM.fullmatch(self.text) is None:
            raise UserError(
                f"{VARIABLE} has {len(self.text)} characters, or characters that a token cannot have; set "
                "it to 32 or more random letters and digits, such as those of: openssl rand -hex 32"
            )

    @classmethod
    def new(cls) -> Token:
        """Draw a new random token."""
        return cls(secrets.token_hex(_BYTES))

    def derive(self, purpose: str) -> bytes:
        """Derive a key of 32 bytes for one purpose; it reveals nothing about the token or other keys."""
        return hmac.digest(self.text.encode(), b"cotswold key: " + purpose.encode(), hashlib.sha256)

    @property
    def fingerprint(self) -> str:
        """Eight characters that identify a token and are no secret."""
        return self.derive("fingerprint").hex()[:8]


def token_of(environ: Mapping[str, str]) -> Token | None:
    """Token that this process was started with; None without one."""
    text = environ.get(VARIABLE, "").strip()
    return Token(text) if text else None


def pool_token_of(environ: Mapping[str, str]) -> Token | None:
    """Token of a pool of data servers: its own if set, otherwise this process's; None without one."""
    text = environ.get(POOL_VARIABLE, environ.get(VARIABLE, "")).strip()
    return Token(text) if text else None


def cluster_token_of(environ: Mapping[str, str]) -> Token | None:
    """Token of a cluster that outlives runs: its own if set, otherwise this process's; None without one."""
    text = environ.get(CLUSTER_VARIABLE, environ.get(VARIABLE, "")).strip()
    return Token(text) if text else None


def rank_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment for ranks that share a new token; the token of a pool is passed on."""
    pool = environ.get(POOL_VARIABLE, environ.get(VARIABLE, ""))
    return {**environ, VARIABLE: Token.new().text, POOL_VARIABLE: pool}


def read_token(path: Path) -> Token:
    """Return the first token in a file, as `load_tokens`."""
    return load_tokens(path)[0]


def load_tokens(path: Path) -> tuple[Token, ...]:
    """Read the tokens in the file at ``path``, one per line; create a missing file with a new token.

    A new file is readable by its user only. Raises UserError if the file is a symbolic link, belongs to
    another user, can be read or written by others, holds anything but tokens, or can be neither read nor
    created.
    """
    with suppress(FileNotFoundError):
        return read_tokens(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was first; all use its token
            create_file(path, Token.new().text.encode() + b"\n", mode=0o600)
        return read_tokens(path)
    except OSError as error:
        raise UserError(
            f"cannot create the token file {path} ({error.strerror}); set {VARIABLE} to the same secret for "
            "all processes of the run"
        ) from error


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read tokens as `load_tokens`, but raise FileNotFoundError if there is no file."""
    try:
        file = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _token_error(path, f"cannot be read: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        found = os.fstat(file)
        if found.st_uid != os.geteuid():
            raise _token_error(path, "belongs to another user")
        if found.st_mode & _OTHERS_MODE:
            raise UserError(
                f"the token file {path} can be read or written by other users; if only you know the secret "
                f"in it: chmod 600 {shlex.quote(str(path))}"
            )
        said = stream.read(_FILE_BYTES).decode(errors="replace").split("\n")
    lines = [each.strip() for each in said if each.strip()]
    if not lines or not all(_FORM.fullmatch(each) for each in lines):
        raise UserError(
            f"the token file {path} holds no token (one line of 32 or more random letters and digits); "
            f"write one: openssl rand -hex 32 > {shlex.quote(str(path))}"
        )
    return tuple(map(Token, lines))


def sign(key: bytes, *parts: bytes) -> bytes:
    """Sign these parts in this order; the signature has 64 hexadecimal digits."""
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, framed, hashlib.sha256).hexdigest().encode()


def is_signed(key: bytes, signature: bytes, *parts: bytes) -> bool:
    """True if a holder of ``key`` made this signature of these parts; compares in constant time."""
    return hmac.compare_digest(sign(key, *parts), signature)


def _token_error(path: Path, why: str) -> UserError:
    return UserError(
        f"the token file {path} {why}; give a file that belongs to this user, or set {VARIABLE} to the same "
        "secret for all processes of the run"
    )
