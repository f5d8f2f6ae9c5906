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
from cotswold.host import keep_freed_memory
from cotswold.paramserver.runtime.traffic_log import TrafficLog
from cotswold.paramserver.runtime.update_loop import UpdateLoop, settings_from_dict
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.shards.core.shard_server import ShardServer
from cotswold.shards.runtime.arithmetic import Array, NumpyArithmetic
from cotswold.transport import Lost
from cotswold.wire import COORDINATOR, Shard, ToServer, ToUpdates
from cotswold.wire.lifecycle import CountersRequest, ServerReady, StopProcess
from cotswold.wire.messenger import Messenger, Received

_COORDINATOR_MESSAGES = get_args(ToServer)
_UPDATES = (*get_args(ToUpdates), CountersRequest)


def main(
    *,
    name: str,
    coordinator: str,
    shards: Sequence[Sequence[object]],
    dtype: str,
    endpoint_settings: Mapping[str, Any],
    updates: Mapping[str, Any] | None = None,
    versions: Sequence[int] = (),
    traffic: str | None = None,
) -> int:
    """Run the server ``name`` until its coordinator at the address ``coordinator`` stops it.

    ``shards`` are the fields of each `Shard`, ``endpoint_settings`` those of `EndpointSettings`. For servers
    of replicas, ``updates`` is the input of `settings_from_dict`. ``versions`` are those of all shards of a
    resumed run. Messages of replicas are logged in the folder ``traffic``. The token is in the environment.
    Raise MachineError if the coordinator exits first.
    """
    keep_freed_memory()  # of messages: the next ones reuse the same pages
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator stops it after its clients
    machine: ShardServer[Array] = ShardServer(name, [Shard(*one) for one in shards], NumpyArithmetic(dtype))  # type: ignore[arg-type]  # as JSON says it
    with open_endpoint(name, EndpointSettings(**endpoint_settings)) as endpoint:
        endpoint.connect(COORDINATOR, coordinator)
        messenger = Messenger(endpoint)
        messenger.send(COORDINATOR, ServerReady(name, endpoint.address))
        with ExitStack() as held:
            draining = None
            if updates is not None:
                settings, written = settings_from_dict(updates), None
                if traffic is not None:
                    written = TrafficLog(Path(traffic) / f"{name}.jsonl", machine.shards, settings, dtype)
                    held.callback(written.close)
                draining = UpdateLoop(machine, settings, dtype, messenger, versions, written)
            serve(machine, messenger, draining)
    return 0


def serve(machine: ShardServer[Array], messenger: Messenger, updates: UpdateLoop | None = None) -> None:
    """Answer messages until the coordinator sends `StopProcess`. Raises MachineError if the coordinator is
    lost."""
    while _attend(
        messenger.receive(None if updates is None else updates.timeout), machine, messenger, updates
    ):
        pass


def _attend(
    event: object, machine: ShardServer[Array], messenger: Messenger, updates: UpdateLoop | None
) -> bool:
    """Handle an event; return False after `StopProcess`. No reference to a message remains afterwards except
    kept values, because its memory is reused."""
    match event:
        case Received(sender, StopProcess()) if sender == COORDINATOR:
            return False
        case Received(sender, message) if isinstance(message, _COORDINATOR_MESSAGES):
            for each in machine.receive(sender, message):
                messenger.send(each.to, each.message)
        case Received(sender, message) if updates is not None and isinstance(message, _UPDATES):
            updates.receive(sender, message)
        case None if updates is not None:
            updates.drain()
        case Lost(peer, why) if peer == COORDINATOR:
            raise MachineError(f"{machine.name} lost its coordinator ({why}); resume the run")
        case _:
            pass
    return True
