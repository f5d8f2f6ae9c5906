"""Seeded lives in which servers are drained and leads evened, beside all else that befalls them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.conftest import FUZZ

from cotswold.bench.chaos.life import Life
from cotswold.bench.chaos.world import World
from cotswold.bench.chaos.worlds import WORLDS
from cotswold.server.control.controller import Controller
from cotswold.server.control.settings import Control
from cotswold.server.messages import Drain, Message, Send, Undrain
from cotswold.simulate.copies import ControllerPlayer

QUICK = Control(settle_seconds=0.1, calm_seconds=0.3, handover_seconds=0.1)
"""What is evened soon, so that much of it happens in a life."""
LIVES = {
    "quiet": 20,
    "network": 20,
    "deaths": 20,
    "pauses": 20,
    "cuts": 20,
    "controllers": 20,
    "everything": 30,
    "two at least": 20,
    "disks": 10,
    "one copy": 20,
}


class DrainedLife(Life):
    """One in which somebody drains servers, some way in, and takes them back."""

    def __init__(self, seed: int, world: World) -> None:
        self.kinds: Counter[str] = Counter()
        """What happened, and how often."""
        self.control = replace(QUICK, copies=world.copies, least=world.least)
        super().__init__(seed, world)

    def _start_controller(self, name: str) -> None:
        clock = self._clock()
        player = ControllerPlayer(self.network, Controller(name, self.control, clock.now), self.state, clock)
        self.controllers = [each for each in self.controllers if each.name != name] + [player]

    def _chance(self) -> None:
        if self.coordinator.has_begun or self._is_quiet:
            self._operate()
        for each in self.controllers:
            events = each.controller.take_events()
            self.kinds.update(event.kind for event in events)
            for event in events:
                self._tell(f"{each.name}: {event.sentence}")
        super()._chance()

    def _operate(self) -> None:
        drained = {key.removeprefix("drain/") for key in self.state.items if key.startswith("drain/")}
        living = [each.name for each in self.servers if each.is_alive and each.name not in drained]
        if self._is_quiet:
            for name in sorted(drained):
                self._ask(Undrain(name))
        elif len(drained) < 2 and living and self.random.random() < 0.08:
            name = self.random.choice(living)
            self._tell(f"{name} is to be drained")
            self._ask(Drain(name, self.random.choice((1.0, 30.0))))
        elif drained and self.random.random() < 0.03:
            self._ask(Undrain(self.random.choice(sorted(drained))))

    def _ask(self, message: Message) -> None:
        self.network.send("operator", [Send(each, message) for each in self._names])


@pytest.mark.parametrize("world", LIVES)
def test_nothing_is_lost_though_servers_are_drained_and_leads_evened(world: str) -> None:
    kinds = Counter[str]()
    for seed in range(LIVES[world] * FUZZ):
        life = DrainedLife(seed, WORLDS[world])
        try:
            life.live()
        except AssertionError as error:
            told = "\n".join(life.transcript[-60:])
            raise AssertionError(f"{world}, seed {seed}: {error}\n{told}") from error
        kinds += life.kinds
    assert {"draining", "drained", "handed-over", "copied"} <= set(kinds), kinds
    assert kinds["balanced"] > 0 or world != "deaths", kinds


def test_members_are_at_no_moment_fewer_than_there_must_be_where_nobody_dies() -> None:
    world = replace(WORLDS["quiet"], servers=4, copies=2, least=2)
    life = DrainedLife(3, world)
    fewest = []

    def watch(key: str, old: str | None, new: str | None) -> None:
        if key.startswith("bucket/") and old is not None:
            fewest.append(min(len(each.members) for each in life.groups.values()))

    life.state._watch = watch
    life.live()
    assert min(fewest) == 2 and life.kinds["handed-over"] > 0, life.kinds
