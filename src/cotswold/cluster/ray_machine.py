"""This machine as one of several: started as the first (the head), or joined to others.

Knows: the words of `ray start`. Does not know: what runs on a machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from cotswold.cluster.ray_settings import DEFAULT_PORT, ray_environ, reachable, require_ray
from cotswold.errors import MachineError
from cotswold.host import Token, granted_cores, token
from cotswold.host.child import Child

_PROGRAM = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start")
_STORE_BYTES = 80_000_000
"""Room for objects of Ray's, which nobody uses: about the least that it takes."""


def start_head(
    token: Token,
    *,
    port: int = DEFAULT_PORT,
    cores: int | None = None,
    environ: Mapping[str, str] = os.environ,
    words: Sequence[str] = (),
) -> Child:
    """Make this machine the first, which others join at ``port``; it is one until the child is ended.

    SIGTERM ends it decently. ``words`` are further ones of `ray start`. Raises MissingExtraError without Ray,
    UserError where Ray is to have no token.
    """
    return _start(token, ["--head", f"--port={port}", "--include-dashboard=false", *words], cores, environ)


def join_head(
    address: str,
    token: Token,
    *,
    cores: int | None = None,
    environ: Mapping[str, str] = os.environ,
    words: Sequence[str] = (),
) -> Child:
    """Add this machine to those at ``address`` until the child is ended; as `start_head` otherwise.

    Raises UserError as well where nobody answers at the address.
    """
    require_ray()
    return _start(token, [f"--address={reachable(address)}", *words], cores, environ)


def _start(given: Token, words: Sequence[str], cores: int | None, environ: Mapping[str, str]) -> Child:
    require_ray()
    variables = {**environ, **ray_environ(given, environ), token.VARIABLE: given.text}
    grant = granted_cores(environ={}) if cores is None else cores
    more = [
        f"--num-cpus={grant}",
        f"--object-store-memory={_STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    ]
    try:
        return Child.start([*_PROGRAM, *words, *more], variables, name="Ray")
    except OSError as error:
        raise MachineError(f"Ray cannot be started here: {error.strerror}; end other processes") from error
