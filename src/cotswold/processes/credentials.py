"""Distribution of a standalone cluster's tokens to the processes of a run.

Knows: the variables that hold secrets, which of them a machine already has. Does not know: how processes are
started, the purpose of tokens.

On one host a process inherits the tokens of its parent. No token is ever sent to another machine: the
machine was started with it, and only confirms that it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotswold.host.keyring import Keyring, KeyringFile
from cotswold.host.token import CLUSTER_VARIABLE, VARIABLE
from cotswold.processes.ray.settings import fingerprint
from cotswold.transport.token_rotation import FILE_VARIABLE, tokens_of_cluster

_OF_CLUSTER = (FILE_VARIABLE, CLUSTER_VARIABLE)


def inherited_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables from which a process on this host reads the tokens, in any working directory."""
    found = {name: environ[name] for name in _OF_CLUSTER if name in environ}
    if path := found.get(FILE_VARIABLE, "").strip():
        found[FILE_VARIABLE] = str(Path(path).absolute())
    return found


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that may be sent to another machine."""
    return {name: text for name, text in environ.items() if name not in (VARIABLE, *_OF_CLUSTER)}


def token_fingerprints(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Fingerprints of the cluster's tokens that a process receives; empty if it receives none. They are
    not secret."""
    return _fingerprints(environ) if any(environ.get(name) for name in _OF_CLUSTER) else ()


def has_any_token(said: Sequence[str], environ: Mapping[str, str]) -> bool:
    """True if a machine with this environment has one of these tokens. Raises UserError for a file that
    others can read."""
    path = environ.get(FILE_VARIABLE, "").strip()
    if path and not Path(path).exists():  # reading the tokens would create the file
        return False
    return bool({*said} & {*_fingerprints(environ)})


def _fingerprints(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = tokens_of_cluster(environ)
    if found is None:
        return ()
    ring = found.refresh() if isinstance(found, KeyringFile) else Keyring.of(found)
    return tuple(map(fingerprint, ring.tokens))
