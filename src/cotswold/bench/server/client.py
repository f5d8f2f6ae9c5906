"""A client that pushes to servers and pulls from them in measurements, like a replica.

Knows: messages of one session, forms of a push. Does not know: processes, what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotswold import wire as m
from cotswold.bench.server.unreplicated_servers import RUN, receive_until
from cotswold.errors import MachineError
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.transport import Endpoint
from cotswold.wire.messenger import AnyMessage, Messenger

_Part = tuple[str, tuple[int, ...], tuple[int, ...], tuple[memoryview, ...]]
"""Kind, shards, examples and buffers of the part for one server."""


class Client:
    """A client with one message at a time to each server, like a replica; must be closed."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: int,
        addresses: Mapping[str, str],
        shards: Sequence[m.Shard],
        kind: str = "gradient",
        controllers: Mapping[str, str] | None = None,
    ) -> None:
        """``endpoint`` is closed with the client; ``kind`` is that of whole pushes; ``controllers`` are
        addresses, if servers are replicated."""
        self._session = session
        self.post = RoutedMessenger(endpoint, controllers) if controllers else Messenger(endpoint)
        self._shards_by_server: dict[str, list[m.Shard]] = {}
        for one in shards:
            self._shards_by_server.setdefault(one.server, []).append(one)
        self.post.connect(addresses.items())
        self._kind = kind
        self.versions = {one.number: -1 for one in shards}
        self._number = 0

    def push(self, gradient: Array) -> None:
        """Push a vector of the model; return when all servers have applied it."""
        self._push(
            {
                server: (
                    self._kind,
                    tuple(one.number for one in shards),
                    (),
                    tuple(raw(gradient[one.start : one.stop]) for one in shards),
                )
                for server, shards in self._shards_by_server.items()
            }
        )

    def push_form(
        self, which: Sequence[int], examples: Sequence[int], columns: Mapping[str, int], numbers: Array
    ) -> None:
        """Push these shards, each as factors of its number of examples, or whole for 0; the values are
        arbitrary.

        Servers without any of these shards get an empty push, since a push has the same number everywhere.
        """
        counts = dict(zip(which, examples, strict=True))
        parts: dict[str, _Part] = {}
        for server, shards in self._shards_by_server.items():
            own = [one for one in shards if one.number in counts]
            buffers, tensors = list[memoryview](), dict[str, int]()
            for one in own:
                count, length = counts[one.number], one.stop - one.start
                if count:
                    tensors[one.tensor] = count
                    length = count * (length // columns[one.tensor])
                buffers.append(raw(numbers[:length]))
            buffers += [raw(numbers[: count * columns[name]]) for name, count in tensors.items()]
            kind = self._kind if not tensors else "factors"
            found = tuple(counts[one.number] for one in own) if tensors else ()
            parts[server] = (kind, tuple(one.number for one in own), found, tuple(buffers))
        self._push(parts)

    def _push(self, parts: Mapping[str, _Part]) -> None:
        self._number += 1
        updates: dict[str, m.Message] = {}
        for server, (kind, numbers, examples, buffers) in parts.items():
            versions = tuple(max(0, self.versions[number]) for number in numbers)
            update = m.Update(
                RUN, self._session, self._number, kind, numbers, versions, 0, 1.0, (), 0, examples, buffers
            )
            updates[server] = update
        self.post.deliver([m.Send(server, update) for server, update in updates.items()])
        waiting = set(parts)

        def hear(message: AnyMessage) -> None:
            if isinstance(message, m.UpdateRefused):
                raise MachineError(f"{message.server} refused a push: {message.reason}")
            if isinstance(message, m.Applied) and message.number == self._number:
                waiting.discard(message.server)
                updates.pop(message.server, None)

        self._await(hear, lambda: not waiting, updates)

    def _await(
        self,
        hear: Callable[[AnyMessage], None],
        until: Callable[[], bool],
        unanswered: Mapping[str, m.Message],
    ) -> None:
        """Receive until a condition holds.

        An unanswered message is resent when a bucket moves to another server, which has not received it. All
        are resent after a while: a primary without a lease is silent.
        """

        def again(server: str) -> None:
            if server in unanswered:
                self.post.send(server, unanswered[server])

        def all_again() -> None:
            for server in list(unanswered):
                again(server)

        receive_until(self.post, hear, until, again, all_again)

    def pull(self, *, whole: bool = False, only: Sequence[int] | None = None) -> list[m.PulledNewer]:
        """Pull shards that are newer than those pulled before, or all with ``whole``; only those in
        ``only`` if given. The buffers belong to the messages."""
        pulls: dict[str, m.Message] = {}
        for server, shards in self._shards_by_server.items():
            numbers = tuple(one.number for one in shards if only is None or one.number in only)
            known = tuple(-1 if whole else self.versions[number] for number in numbers)
            pulls[server] = m.PullNewer(RUN, self._session, 0, numbers, known)
        self.post.deliver([m.Send(server, pull) for server, pull in pulls.items()])
        came: dict[str, m.PulledNewer] = {}

        def hear(message: AnyMessage) -> None:
            if isinstance(message, m.PulledNewer):
                if message.error is not None:
                    raise MachineError(f"{message.server} refused a pull: {message.error}")
                came[message.server] = message
                pulls.pop(message.server, None)
                self.versions.update(zip(message.shards, message.versions, strict=True))

        self._await(hear, lambda: len(came) == len(self._shards_by_server), pulls)
        return list(came.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received so far, including shared memory."""
        traffic = self.post.endpoint.traffic
        return traffic.received_bytes + traffic.received_shared_bytes

    def close(self) -> None:
        """Disconnect."""
        self.post.endpoint.close()
