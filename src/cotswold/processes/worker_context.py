"""Context of a process that works for a coordinator: its work, and its messenger.

Knows: threads, how a work is created, its device, the endpoint. Does not know: the role of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch._dynamo  # a custom operation imports it at its first call; a fork server, once

from cotswold.errors import UserError
from cotswold.host import keep_freed_memory
from cotswold.host.processes import import_function
from cotswold.processes.device import compute_on, select_device
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.shards.runtime.work import DeviceWork
from cotswold.transport import Endpoint
from cotswold.wire import COORDINATOR
from cotswold.wire.messenger import Messenger


@contextmanager
def worker_context(
    name: str,
    coordinator: str,
    work: str,
    arguments: Mapping[str, object],
    endpoint_settings: Mapping[str, Any],
    threads: int,
    device: str = "cpu",
    place: int = 0,
    make_messenger: Callable[[Endpoint], Messenger] = Messenger,
) -> Iterator[tuple[object, Messenger]]:
    """Create the work of ``work`` (``"module:function"``) and the messenger of the process called ``name``;
    both end with the block.

    Args:
        endpoint_settings: Fields of `EndpointSettings`. The token is in the environment.
        device: Device, as for `select_device`; it becomes this thread's device.
        place: Place of the process, as for `select_device`.
        make_messenger: Create the messenger over the endpoint; its endpoint is closed with the block.

    Raises:
        UserError: If there is no such work or no token, or if the work supports the CPU only.
        CotswoldError: From `select_device` and the work.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    with ExitStack() as held:
        made: object = import_function(work)(**arguments)
        if device != "cpu":
            if not isinstance(made, DeviceWork):
                raise UserError(f'{work} returns a CPU-only work; set training.device to "cpu"')
            found = select_device(device, name, place)
            compute_on(found)
            made.move_to(found)
        if isinstance(made, AbstractContextManager):  # work that owns resources, such as processes
            made = held.enter_context(made)
        endpoint = held.enter_context(open_endpoint(name, EndpointSettings(**endpoint_settings)))
        endpoint.connect(COORDINATOR, coordinator)
        messenger = make_messenger(endpoint)
        held.callback(messenger.endpoint.close)
        yield made, messenger
