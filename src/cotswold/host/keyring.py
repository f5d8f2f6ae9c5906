"""Tokens of which one follows another, so that a secret is changed while those who know it work.

Knows: a token file of several lines, when it is read again. Does not know: who listens, who calls.

The first token of a ring is the one by which a process is reached; with the others it may be called too, and
calls. To change the token of a cluster: the new one becomes the second line of every machine's file; when it
is there on all, the first line; when it is first on all, the old one is removed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import UserError
from cotswold.host.token import Token, read_tokens, tokens_in

MOST_TOKENS = 8
_TICK_NS = 1_000_000_000


@dataclass(frozen=True)
class Keyring:
    """One to eight different tokens; raises UserError for others."""

    tokens: tuple[Token, ...] = field(repr=False)
    """The newest in use first."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= MOST_TOKENS:
            raise UserError(
                f"{len(self.tokens)} tokens are in use at once; keep the first, and at most "
                f"{MOST_TOKENS - 1} that it follows or that follow it"
            )
        if len(set(self.tokens)) < len(self.tokens):
            raise UserError("a token is there twice; remove one of the lines")

    @property
    def first(self) -> Token:
        """The token by which a process is reached."""
        return self.tokens[0]

    @classmethod
    def of(cls, given: Token | Keyring) -> Keyring:
        """A ring as it is, or one with a token alone."""
        return cls((given,)) if isinstance(given, Token) else given


class KeyringFile:
    """The ring in the file at ``path``; raises UserError where it is not there, and as `tokens_in` does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: object = None
        self._trouble = self._reported = ""
        try:
            self._ring = Keyring(read_tokens(path))
        except FileNotFoundError as error:
            raise UserError(
                f"the file with the token, {path}, is not there; copy it from where servers run"
            ) from error

    @classmethod
    def made(cls, path: Path) -> KeyringFile:
        """As the class itself, but the file is made where it is not there: by whoever begins something."""
        tokens_in(path)
        return cls(path)

    def refreshed(self) -> Keyring:
        """The ring as the file has it now; to be asked every second or so.

        Where that cannot be read, or holds none, the ring is the one before, and `take_trouble` says why.
        """
        stamp = self._stamped()
        if stamp is not None and stamp == self._stamp:
            return self._ring
        self._stamp = stamp
        try:
            self._ring, self._trouble = Keyring(read_tokens(self.path)), ""
        except FileNotFoundError:
            self._trouble = f"the file with the token, {self.path}, is gone; write the tokens in use into it"
        except UserError as error:
            self._trouble = str(error) if str(self.path) in str(error) else f"in {self.path}: {error}"
        return self._ring

    def take_trouble(self) -> str:
        """What is wrong with the file since `refreshed` found it so, once; empty where nothing is."""
        trouble = "" if self._trouble == self._reported else self._trouble
        self._reported = self._trouble
        return trouble and f"{trouble} (until then the tokens that were in it serve)"

    def _stamped(self) -> object:
        """What is different for a file that was written again; None where that is not known yet: times of
        files have ticks."""
        with suppress(OSError):
            found = self.path.lstat()
            if time.time_ns() - found.st_ctime_ns < _TICK_NS:
                return None
            return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode
        return None
