"""How processes of a run come to know the tokens of a cluster that outlives it.

Knows: the variables in which secrets are, and which a machine has itself. Does not know: how processes are
started, what tokens are for.

On one host a process is handed what whoever starts it has. To another machine no token is sent: it has been
started with it, and it is asked only whether it is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotswold.host.keyring import Keyring, KeyringFile
from cotswold.host.token import CLUSTER_VARIABLE, VARIABLE
from cotswold.processes.ray.settings import fingerprint
from cotswold.transport.token_rotation import FILE_VARIABLE, tokens_of_cluster

_OF_CLUSTER = (FILE_VARIABLE, CLUSTER_VARIABLE)


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a process on this host knows the tokens, in whatever folder it stands."""
    found = {name: environ[name] for name in _OF_CLUSTER if name in environ}
    if path := found.get(FILE_VARIABLE, "").strip():
        found[FILE_VARIABLE] = str(Path(path).absolute())
    return found


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """What may be sent to another machine."""
    return {name: text for name, text in environ.items() if name not in (VARIABLE, *_OF_CLUSTER)}


def tokens_said(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Of the tokens of a cluster that a process is handed: what tells them from others, and is no secret;
    nothing where it is handed none."""
    return _fingerprints(environ) if any(environ.get(name) for name in _OF_CLUSTER) else ()


def has_one_of(said: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a machine with this environment has one of these tokens; raises UserError for a file that
    others can read."""
    path = environ.get(FILE_VARIABLE, "").strip()
    if path and not Path(path).exists():  # which whoever asks for its tokens would make
        return False
    return bool({*said} & {*_fingerprints(environ)})


def _fingerprints(environ: Mapping[str, str]) -> tuple[str, ...]:
    found = tokens_of_cluster(environ)
    if found is None:
        return ()
    ring = found.refresh() if isinstance(found, KeyringFile) else Keyring.of(found)
    return tuple(map(fingerprint, ring.tokens))
