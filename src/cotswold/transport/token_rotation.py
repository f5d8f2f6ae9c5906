"""Endpoints of which the tokens are those of a file that may be written again while they are in use.

Knows: when the file is looked at. Does not know: who listens, what a token is for.
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

_LOOK_SECONDS = 1.0
FILE_VARIABLE = "COTSWOLD_CLUSTER_TOKEN_FILE"
"""The environment variable that names the file with the tokens of a cluster."""


class Rotating:
    """The tokens of a process."""

    def __init__(self, given: Token | KeyringFile) -> None:
        self._given = given
        self._looked = float("-inf")
        self._failing = set[Endpoint]()
        """Those without a port for the new token."""

    @classmethod
    def of_file(cls, path: str | None) -> Rotating | None:
        """Those in a file; without one the token in the environment, if there is one."""
        if path is not None:
            return cls(KeyringFile(Path(path)))
        token = token_of(os.environ)
        return None if token is None else cls(token)

    @property
    def may_change(self) -> bool:
        """Whether there may be others some time."""
        return not isinstance(self._given, Token)

    @property
    def ring(self) -> Token | Keyring:
        """Those in use."""
        return self._given if isinstance(self._given, Token) else self._given.refresh()

    def tick(self, endpoints: Iterable[Endpoint], now: float) -> list[str]:
        """Look whether there are others, now and then; then endpoints have these. What is wrong with the
        file, and with a port for the new token of an endpoint, since this moment: a sentence each."""
        if isinstance(self._given, Token) or now - self._looked < _LOOK_SECONDS:
            return []
        self._looked = now
        ring = self._given.refresh()
        trouble = self._given.take_problem()
        found = [trouble] if trouble else []
        for each in endpoints:
            try:
                each.rotate(ring)
            except MachineError as error:  # no port is free; it is tried again
                if each not in self._failing:
                    found.append(str(error))
                self._failing.add(each)
            else:
                self._failing.discard(each)
        return found


def tokens_of_cluster(environ: Mapping[str, str]) -> Token | KeyringFile | None:
    """The tokens of a cluster that outlives runs: those in a file that the environment names, or the token in
    it; None if there is none."""
    path = environ.get(FILE_VARIABLE, "").strip()
    return KeyringFile(Path(path)) if path else cluster_token_of(environ)


def required_tokens(environ: Mapping[str, str]) -> Token | KeyringFile:
    """The same; raises UserError if there is none."""
    found = tokens_of_cluster(environ)
    if found is None:
        raise UserError(
            f"the cluster of parameter servers has a secret of its own: set {CLUSTER_VARIABLE}, or "
            f"{FILE_VARIABLE} to the file that has it"
        )
    return found
