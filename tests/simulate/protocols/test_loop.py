"""Virtual time, and a network that loses, repeats and delays."""

from __future__ import annotations

from random import Random

from cotswold.simulate.protocols.loop import VirtualTimeLoop
from cotswold.simulate.protocols.network import Faults, SimulatedNetwork
from cotswold.wire import Message, Send, Shutdown


class Listener:
    name = "listener"

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.heard: list[tuple[float, Message]] = []
        self._loop = loop

    def receive(self, sender: str, message: Message) -> None:
        self.heard.append((self._loop.now, message))


def heard(count: int, faults: Faults | None = None, **more: float) -> list[tuple[float, Message]]:
    loop = VirtualTimeLoop()
    network = SimulatedNetwork(loop, Random(1), faults, latency_seconds=0.5, size=lambda message: 100, **more)
    network.endpoints["listener"] = listener = Listener(loop)
    network.send("speaker", [Send("listener", Shutdown(number)) for number in range(count)])
    loop.run(lambda: False, seconds=1000)
    return listener.heard


def test_what_is_due_first_happens_first_and_in_the_order_of_asking() -> None:
    loop, seen = VirtualTimeLoop(), list[str]()
    for seconds, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        loop.schedule(seconds, lambda name=name: seen.append(name))  # type: ignore[misc]  # bound now, not later
    assert loop.run(lambda: len(seen) == 3, seconds=10)
    assert (seen, loop.now) == (["a", "b", "c"], 2.0)


def test_a_loop_that_nothing_ends_stops_at_its_bound() -> None:
    loop = VirtualTimeLoop()

    def again() -> None:
        loop.schedule(1.0, again)

    again()
    assert not loop.run(lambda: False, seconds=5.5)
    assert loop.now == 5.0
    assert not loop.run(lambda: False, seconds=1e9, events=3)
    assert loop.events == 8


def test_messages_of_one_sender_leave_one_after_the_other() -> None:
    assert [time for time, _ in heard(3, bytes_per_second=100.0)] == [1.5, 2.5, 3.5]


def test_a_share_of_messages_is_lost_and_another_comes_twice() -> None:
    assert 850 < len(heard(1000, Faults(lost_fraction=0.1))) < 950
    assert 1050 < len(heard(1000, Faults(duplicated_fraction=0.1))) < 1150


def test_late_messages_are_overtaken() -> None:
    sessions = [
        message.session
        for _, message in heard(100, Faults(delayed_fraction=0.5))
        if isinstance(message, Shutdown)
    ]
    assert sorted(sessions) == list(range(100))
    assert sessions != list(range(100))
