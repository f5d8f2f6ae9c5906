"""Endpoints whose tokens come from a file that may be rewritten while they are in use.

Knows: when to read the file. Does not know: who listens, the purpose of a token.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cotswold.errors import MachineError, UserError
from cotswold.host import Token, cluster_token_of, token_of
from cotswold.host.keyring import Keyring, KeyringFile
from cotswold.host.token import CLUSTER_VARIABLE
from cotswold.transport import Endpoint

_CHECK_SECONDS = 1.0
FILE_VARIABLE = "COTSWOLD_CLUSTER_TOKEN_FILE"
"""The environment variable that names the file with the tokens of a cluster."""


class TokenRotation:
    """The tokens of a process."""

    def __init__(self, source: Token | KeyringFile) -> None:
        self._source = source
        self._checked_at = float("-inf")
        self._failed_endpoints = set[Endpoint]()
        """Endpoints without a port for the new token."""

    @classmethod
    def of_file(cls, path: str | None) -> TokenRotation | None:
        """The tokens in a file; without a file the token in the environment, if any."""
        if path is not None:
            return cls(KeyringFile(Path(path)))
        token = token_of(os.environ)
        return None if token is None else cls(token)

    @property
    def may_change(self) -> bool:
        """True if the tokens may change."""
        return not isinstance(self._source, Token)

    @property
    def ring(self) -> Token | Keyring:
        """The tokens in use."""
        return self._source if isinstance(self._source, Token) else self._source.refresh()

    def tick(self, endpoints: Iterable[Endpoint], now: float) -> list[str]:
        """Read the file now and then, and pass new tokens to the endpoints.

        Returns new problems, a sentence each: with the file, or with a port for an endpoint's new token.
        """
        if isinstance(self._source, Token) or now - self._checked_at < _CHECK_SECONDS:
            return []
        self._checked_at = now
        ring = self._source.refresh()
        trouble = self._source.take_problem()
        found = [trouble] if trouble else []
        for each in endpoints:
            try:
                each.rotate(ring)
            except MachineError as error:  # no port is free; the next tick tries again
                if each not in self._failed_endpoints:
                    found.append(str(error))
                self._failed_endpoints.add(each)
            else:
                self._failed_endpoints.discard(each)
        return found


def tokens_of_cluster(environ: Mapping[str, str]) -> Token | KeyringFile | None:
    """The tokens of a standalone cluster: those in the file that the environment names, or the token in
    the environment; None if there is none."""
    path = environ.get(FILE_VARIABLE, "").strip()
    return KeyringFile(Path(path)) if path else cluster_token_of(environ)


def required_tokens(environ: Mapping[str, str]) -> Token | KeyringFile:
    """The tokens of a standalone cluster; raise UserError if there is none."""
    found = tokens_of_cluster(environ)
    if found is None:
        raise UserError(
            f"a cluster of parameter servers needs its own token: set {CLUSTER_VARIABLE}, or "
            f"{FILE_VARIABLE} to the file that contains it"
        )
    return found
