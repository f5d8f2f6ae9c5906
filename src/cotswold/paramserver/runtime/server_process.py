"""Parameter server process: shards of the vectors in its memory.

Knows: endpoints, the state machine of a server, arithmetic. Does not know: the use of the vectors.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

from cotswold.errors import MachineError
from cotswold.host import keep_freed_bytes
from cotswold.paramserver.runtime.traffic_log import Traffic
from cotswold.paramserver.runtime.update_loop import Draining, asynchronous_of
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.shards.core.shard_server import Server
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic
from cotswold.transport import Lost
from cotswold.wire import COORDINATOR, Shard, ToServer, ToUpdates
from cotswold.wire.lifecycle import Count, Finish, Serving
from cotswold.wire.messenger import Letter, Post

_OBEYED = get_args(ToServer)
_UPDATES = (*get_args(ToUpdates), Count)


def main(
    *,
    name: str,
    coordinator: str,
    shards: Sequence[Sequence[object]],
    dtype: str,
    reach: Mapping[str, Any],
    updates: Mapping[str, Any] | None = None,
    versions: Sequence[int] = (),
    traffic: str | None = None,
) -> int:
    """Run the server ``name`` until its coordinator at the address ``coordinator`` stops it.

    ``shards`` are the fields of each `Shard`, ``reach`` those of `EndpointSettings`. For servers of replicas,
    ``updates`` is the input of `asynchronous_of`, and ``versions`` are those of all shards of a resumed run.
    Messages of replicas are logged in the folder ``traffic``. The token is in the environment. Raise
    MachineError if the coordinator exits first.
    """
    keep_freed_bytes()  # of messages: the next ones reuse the same pages
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator stops it after its clients
    machine: Server[Array] = Server(name, [Shard(*one) for one in shards], NumpyArithmetic(dtype))  # type: ignore[arg-type]  # as JSON says it
    with open_endpoint(name, EndpointSettings(**reach)) as endpoint:
        endpoint.connect(COORDINATOR, coordinator)
        post = Post(endpoint)
        post.send(COORDINATOR, Serving(name, endpoint.address))
        with ExitStack() as held:
            draining = None
            if updates is not None:
                settings, written = asynchronous_of(updates), None
                if traffic is not None:
                    written = Traffic(Path(traffic) / f"{name}.jsonl", machine.shards, settings, dtype)
                    held.callback(written.close)
                draining = Draining(machine, settings, dtype, post, versions, written)
            serve(machine, post, draining)
    return 0


def serve(machine: Server[Array], post: Post, updates: Draining | None = None) -> None:
    """Answer messages until the coordinator sends `Stop`; raise MachineError if the coordinator is lost."""
    while _attend(post.receive(None if updates is None else updates.patience), machine, post, updates):
        pass


def _attend(event: object, machine: Server[Array], post: Post, updates: Draining | None) -> bool:
    """Handle an event; return False after `Stop`. No reference to a message remains afterwards except kept
    values, because its memory is reused."""
    match event:
        case Letter(sender, Finish()) if sender == COORDINATOR:
            return False
        case Letter(sender, message) if isinstance(message, _OBEYED):
            for each in machine.receive(sender, message):
                post.send(each.to, each.message)
        case Letter(sender, message) if updates is not None and isinstance(message, _UPDATES):
            updates.hear(sender, message)
        case None if updates is not None:
            updates.drain()
        case Lost(peer, why) if peer == COORDINATOR:
            raise MachineError(f"{machine.name} lost its coordinator ({why}); resume the run")
        case _:
            pass
    return True
