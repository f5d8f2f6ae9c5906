"""Fake controllers: endpoints of this process with scripted messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cotswold.host import Token
from cotswold.replication.client.standalone_cluster import controller_name
from cotswold.transport import Endpoint
from cotswold.wire import ClusterEvent, Message, RunStatus, StatusReply, StatusRequest
from cotswold.wire.messenger import AnyMessage, Messenger, Received

Answers = Callable[[str, AnyMessage], Sequence[Message]]
"""Replies of a controller with this name to a message."""


@contextmanager
def controllers(token: Token, ports: Sequence[int], answers: Answers) -> Iterator[None]:
    """Run a fake controller at each of these ports of this host."""
    with ExitStack() as stack:
        over = threading.Event()
        stack.callback(over.set)
        for port in ports:
            name = controller_name("127.0.0.1", port)
            endpoint = stack.enter_context(
                Endpoint(token, name, host="127.0.0.1", ports=(port,), mode="curve")
            )
            player = threading.Thread(target=_play, args=(name, Messenger(endpoint), answers, over))
            player.start()
            stack.callback(player.join)
            stack.callback(over.set)
        yield


def _play(name: str, messenger: Messenger, answers: Answers, over: threading.Event) -> None:
    while not over.is_set():
        match messenger.receive(0.05):
            case Received(sender, message):
                for each in answers(name, message):
                    messenger.send(sender, each)
            case _:
                pass
    messenger.endpoint.flush(0.2)


def seen(asked: AnyMessage, *runs: RunStatus) -> StatusReply:
    """Return the reply to a `StatusRequest`, with one event about the requested bucket."""
    assert isinstance(asked, StatusRequest)
    events = (ClusterEvent(1.0, "joined", asked.bucket, "it is there", "", ()),)
    return StatusReply("controller", 1, 3, 1, (), runs, (), 0, events, number=asked.number)
