"""What a process that works for a coordinator begins with: its work, and its way to the coordinator.

Knows: threads, how a work is made, its device, the endpoint. Does not know: what the process is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch._dynamo  # a custom operation imports it at its first call; a fork server, once

from cotswold.errors import UserError
from cotswold.host import keep_freed_bytes
from cotswold.host.processes import import_function
from cotswold.processes.device import compute_on, own_device
from cotswold.processes.endpoint_settings import Reach, own_endpoint
from cotswold.replication.client.endpoints import Outward
from cotswold.replication.client.routed_messenger import RoutedPost
from cotswold.shards.runtime.work import DeviceWork
from cotswold.wire import COORDINATOR
from cotswold.wire.messenger import Post


@contextmanager
def at_work(
    name: str,
    coordinator: str,
    work: str,
    arguments: Mapping[str, object],
    reach: Mapping[str, Any],
    threads: int,
    device: str = "cpu",
    place: int = 0,
    controllers: Mapping[str, str] | None = None,
    standing_run: str = "",
) -> Iterator[tuple[object, Post]]:
    """What ``work`` (``"module:function"``) makes, and the post of the process called ``name``; both end with
    the block.

    ``reach`` are the fields of `Reach`; ``device`` and ``place``: where it computes, as for `own_device`;
    that is this thread's device then; ``controllers``: address by name, where servers keep copies;
    ``standing_run``: what the run is called there, where they outlive it. The token is in the environment.
    Raises UserError where there is no such work or no token, or where the work stays on the CPU, and what
    `own_device` and the work raise."""
    torch.set_num_threads(threads)
    keep_freed_bytes()
    with ExitStack() as held:
        made: object = import_function(work)(**arguments)
        if device != "cpu":
            if not isinstance(made, DeviceWork):
                raise UserError(f'{work} makes what computes on the CPU alone; set training.device to "cpu"')
            found = own_device(device, name, place)
            compute_on(found)
            made.move_to(found)
        if isinstance(made, AbstractContextManager):  # work that has things to let go of, such as processes
            made = held.enter_context(made)
        endpoint = held.enter_context(own_endpoint(name, Reach(**reach)))
        endpoint.connect(COORDINATOR, coordinator)
        if not controllers:
            yield made, Post(endpoint)
            return
        outward = Outward(name, standing_run, Reach(**reach)) if standing_run else None
        post = RoutedPost(endpoint, controllers, outward)
        held.callback(post.endpoint.close)
        yield made, post
