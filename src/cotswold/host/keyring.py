"""Rings of tokens, so that a secret can be rotated while processes use it.

Knows: a token file of several lines, when to read it again. Does not know: listeners, callers.

A process listens with the first token of its ring; it accepts and makes calls with the others, too. To rotate
the token of a cluster: add the new token as the second line of every machine's file; when it is on all, move
it to the first line; when it is first on all, remove the old one.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cotswold.errors import UserError
from cotswold.host.token import Token, load_tokens, read_tokens

MOST_TOKENS = 8
_TICK_NS = 1_000_000_000


@dataclass(frozen=True)
class Keyring:
    """One to eight different tokens; raises UserError for other numbers or duplicates."""

    tokens: tuple[Token, ...] = field(repr=False)
    """The newest token in use comes first."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.tokens) <= MOST_TOKENS:
            raise UserError(
                f"{len(self.tokens)} tokens are in use at once; keep the first, and at most "
                f"{MOST_TOKENS - 1} others"
            )
        if len(set(self.tokens)) < len(self.tokens):
            raise UserError("the file lists a token twice; remove one of the lines")

    @property
    def first(self) -> Token:
        """The token with which a process listens."""
        return self.tokens[0]

    @classmethod
    def of(cls, given: Token | Keyring) -> Keyring:
        """Return a ring unchanged, or a ring of one token."""
        return cls((given,)) if isinstance(given, Token) else given


class KeyringFile:
    """The ring in the file at ``path``; UserError if the file is missing or invalid (as in `load_tokens`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: object = None
        self._problem = self._reported = ""
        try:
            self._ring = Keyring(read_tokens(path))
        except FileNotFoundError as error:
            raise UserError(
                f"the token file {path} does not exist; copy it from a machine that runs servers"
            ) from error

    @classmethod
    def create(cls, path: Path) -> KeyringFile:
        """Create the file if it is missing, for the process that starts a cluster, then read it."""
        load_tokens(path)
        return cls(path)

    def refresh(self) -> Keyring:
        """Return the ring that the file has now; call it about once a second.

        If the file cannot be read, or holds no token, the result is the previous ring, and `take_problem`
        says why.
        """
        stamp = self._read_stamp()
        if stamp is not None and stamp == self._stamp:
            return self._ring
        self._stamp = stamp
        try:
            self._ring, self._problem = Keyring(read_tokens(self.path)), ""
        except FileNotFoundError:
            self._problem = f"the token file {self.path} has been removed; write the tokens in use into it"
        except UserError as error:
            self._problem = str(error) if str(self.path) in str(error) else f"in {self.path}: {error}"
        return self._ring

    def take_problem(self) -> str:
        """Return the file's problem since `refresh` detected it, once; empty without one."""
        trouble = "" if self._problem == self._reported else self._problem
        self._reported = self._problem
        return trouble and f"{trouble} (until then the previous tokens stay in use)"

    def _read_stamp(self) -> object:
        """Stamp that differs for a file that was written again; None while the file is too recent.

        File times have a coarse resolution.
        """
        with suppress(OSError):
            found = self.path.lstat()
            if time.time_ns() - found.st_ctime_ns < _TICK_NS:
                return None
            return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode
        return None
