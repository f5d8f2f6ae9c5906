"""This machine as one of several: started as the first (the head), or joined to others.

Knows: the words of `ray start`. Does not know: what runs on a machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from cotswold.errors import MachineError, UserError
from cotswold.host import Token, granted_cores, token
from cotswold.host.child_process import Child
from cotswold.processes.credentials import handed_on
from cotswold.processes.ray.settings import DEFAULT_PORT, ray_environ, reachable, require_ray

_PROGRAM = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start")
_SINGLE = (
    "node-manager",
    "object-manager",
    "runtime-env-agent",
    "dashboard-agent-grpc",
    "dashboard-agent-listen",
    "metrics-export",
)
"""What of Ray's has one port on each machine; the head has one more, for clients."""
PORTS_LEAST = 32
_STORE_BYTES = 80_000_000
"""Room for objects of Ray's, which nobody uses: about the least that it takes."""


def start_head(
    token: Token,
    *,
    port: int = DEFAULT_PORT,
    cores: int | None = None,
    environ: Mapping[str, str] = os.environ,
    ports: tuple[int, int] | None = None,
    output: int | None = None,
    words: Sequence[str] = (),
) -> Child:
    """Make this machine the first, which others join at ``port``; it is one until the child is ended.

    SIGTERM ends it decently. Ray listens at ``ports`` besides, from the first to the last; at any without.
    It prints to the descriptor ``output``. ``words`` are further ones of `ray start`. Raises
    MissingExtraError without Ray, UserError where Ray is to have no token.
    """
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    if ports is not None:
        head.append(f"--ray-client-server-port={ports[0] + len(_SINGLE)}")
    return _start(token, [*head, *_at(ports), *words], cores, environ, output)


def join_head(
    address: str,
    token: Token,
    *,
    cores: int | None = None,
    environ: Mapping[str, str] = os.environ,
    ports: tuple[int, int] | None = None,
    output: int | None = None,
    words: Sequence[str] = (),
) -> Child:
    """Add this machine to those at ``address`` until the child is ended; as `start_head` otherwise.

    Raises UserError as well where nobody answers at the address.
    """
    require_ray()
    return _start(token, [f"--address={reachable(address)}", *_at(ports), *words], cores, environ, output)


def _at(ports: tuple[int, int] | None) -> Sequence[str]:
    """Where Ray listens on a machine, in its words; raises UserError for too few ports.

    Its own default for workers is 10002 to 19999, in which another port, the head's, may not lie.
    """
    if ports is None:
        return ("--min-worker-port=0", "--max-worker-port=0")
    first, last = ports
    if not 0 < first <= last < 1 << 16 or last - first + 1 < PORTS_LEAST:
        raise UserError(f"ports {first} to {last}: Ray needs {PORTS_LEAST} on each machine, of 1 to 65535")
    singles = [f"--{name}-port={first + place}" for place, name in enumerate(_SINGLE)]
    return (*singles, f"--min-worker-port={first + len(_SINGLE) + 1}", f"--max-worker-port={last}")


def _start(
    given: Token, words: Sequence[str], cores: int | None, environ: Mapping[str, str], output: int | None
) -> Child:
    require_ray()
    own = {**ray_environ(given, environ), **handed_on(environ), token.VARIABLE: given.text}
    variables = {**environ, **own}
    grant = granted_cores(environ={}) if cores is None else cores
    more = [
        f"--num-cpus={grant}",
        f"--object-store-memory={_STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    ]
    try:
        return Child.start([*_PROGRAM, *words, *more], variables, output=output, name="Ray")
    except OSError as error:
        raise MachineError(f"Ray cannot be started here: {error.strerror}; end other processes") from error
