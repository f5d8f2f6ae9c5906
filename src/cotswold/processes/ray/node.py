"""This machine as a node of a Ray cluster: started as the head, or joined to a head.

Knows: the options of `ray start`. Does not know: what runs on a machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from cotswold.errors import MachineError, UserError
from cotswold.host import Token, granted_cores, token
from cotswold.host.child_process import Child
from cotswold.processes.credentials import inherited_credentials
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
"""Ray's services with one port on each machine; the head has one more, for clients."""
MIN_PORTS = 32
_STORE_BYTES = 80_000_000
"""Bytes of Ray's object store, which is not used: about the least that Ray accepts."""


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
    """Start a Ray head on this machine, which others join at ``port``; ends with the returned child.

    SIGTERM shuts it down gracefully. Raises MissingExtraError without Ray, UserError if ``environ`` turns
    off Ray's token.

    Args:
        ports: First and last port for Ray's other services; None for any.
        output: Descriptor that Ray prints to.
        words: Further options of `ray start`.
    """
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    if ports is not None:
        head.append(f"--ray-client-server-port={ports[0] + len(_SINGLE)}")
    return _start(token, [*head, *_port_options(ports), *words], cores, environ, output)


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
    """Join this machine to the head at ``address``; ends with the returned child. Arguments as for
    `start_head`.

    Also raises UserError if no process answers at the address.
    """
    require_ray()
    return _start(
        token, [f"--address={reachable(address)}", *_port_options(ports), *words], cores, environ, output
    )


def _port_options(ports: tuple[int, int] | None) -> Sequence[str]:
    """Ray's options for its ports on a machine; raise UserError for too few ports.

    Ray's own default for workers is 10002 to 19999, which must not contain another port, such as the head's.
    """
    if ports is None:
        return ("--min-worker-port=0", "--max-worker-port=0")
    first, last = ports
    if not 0 < first <= last < 1 << 16 or last - first + 1 < MIN_PORTS:
        raise UserError(f"ports {first} to {last}: Ray needs {MIN_PORTS} per machine, between 1 and 65535")
    singles = [f"--{name}-port={first + place}" for place, name in enumerate(_SINGLE)]
    return (*singles, f"--min-worker-port={first + len(_SINGLE) + 1}", f"--max-worker-port={last}")


def _start(
    given: Token, words: Sequence[str], cores: int | None, environ: Mapping[str, str], output: int | None
) -> Child:
    require_ray()
    own = {**ray_environ(given, environ), **inherited_credentials(environ), token.VARIABLE: given.text}
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
