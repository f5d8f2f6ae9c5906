"""Seeded lives of servers with copies, and planted mistakes that these lives must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import BrokenError
from tests.chaos.run import live_copies
from tests.chaos.runs import transcript
from tests.chaos.simulation import Simulation
from tests.chaos.worlds import WORLDS
from tests.conftest import FUZZ

from cotswold.errors import UserError

LIVES = {
    "quiet": 20,
    "one at a time": 24,
    "one of two": 15,
    "network": 10,
    "deaths": 40,
    "pauses": 6,
    "cuts": 12,
    "controllers": 10,
    "everything": 20,
    "two at least": 30,
    "five copies": 20,
    "chain": 14,
    "chain of five": 14,
    "disks": 20,
    "outages": 14,
    "outages in pushes": 14,
    "disks exchanged": 14,
    "one copy on disk": 14,
    "disks and all": 4,
    "one copy": 36,
    "massacres": 20,
    "reckless": 10,
    "overtaken": 50,
    "strays": 36,
    "late state": 44,
    "cut state": 20,
    "full disks": 14,
    "hosts gone": 10,
    "momentum on disks": 10,
    "bad disks": 12,
    "chain on disks": 12,
    "nobody leads": 12,
    "clients cut off": 12,
    "drains": 24,
    "calm drains": 70,
    "drains and deaths": 30,
    "runs": 30,
    "freezing": 24,
    "folded": 14,
    "deaf": 14,
    "outages at once": 20,
    "left alone": 30,
    "astray": 8,
    "momentum": 90,
    "few servers": 90,
}
"""Number of lives judged to their end, more than a thousand in total. Worlds that may lose a bucket run more
lives."""
PARTS = 2
"""Number of tests that share the lives of a world, for several processes."""
FOUND = {
    "any-term": ("overtaken", range(19, 40)),
    "at-once": ("everything", range(10)),
    "one-is-enough": ("pauses", range(20)),
    "chain-head": ("chain", range(5, 80)),
    "however-few": ("few servers", range(1, 10)),
    "unheld": ("everything", range(10)),
    "gaps": ("overtaken", range(10)),
    "without-prepared": ("overtaken", range(10)),
    "counts-removed": ("overtaken", range(2, 10)),
    "old-groups": ("drains", range(10)),
    "no-numbers": ("everything", range(10)),
    "waiting-numbers": ("pauses", range(12, 20)),
    "weights-alone": ("momentum", range(10)),
    "no-orders": ("overtaken", range(10)),
    "no-frozen": ("freezing", range(1, 10)),
    "frozen-is-now": ("folded", range(32, 60)),
    "torn": ("freezing", range(3, 20)),
    "unfenced": ("drains", range(46, 80)),
    "keeps-all": ("strays", range(8, 120)),
    "caught-early": ("pauses", range(6, 200)),
    "long-lease": ("pauses", range(20)),
    "wrong-way": ("astray", range(4, 20)),
    "from-answer": ("pauses", range(20)),
    "hasty": ("deaf", range(10)),
    "no-lease": ("pauses", range(20)),
    "claims-unchecked": ("pauses", range(60)),
    "shortest": ("overtaken", range(20)),
    "uncompared": ("late state", range(15, 40)),
    "drained-first": ("calm drains", range(10)),
    "unpromoted": ("overtaken", range(10)),
    "unstamped": ("overtaken", range(7, 20)),
    "says-all": ("pauses", range(1, 10)),
    "unconfirmed": ("drains and deaths", range(40)),
    "assumed": ("cut state", range(40, 60)),
    "taken-for-saved": ("full disks", range(2, 40)),
    "no-complaints": ("one at a time", range(20)),
    "never-cut-off": ("one at a time", range(29, 60)),
    "deaf-leads": ("one of two", range(8, 40)),
    "held-back": ("one at a time", range(1, 20)),
    "remembers": ("runs", range(10)),
    "same-life": ("outages", range(10)),
    "sessions-go-on": ("outages", range(10)),
    "saved-at-once": ("disks and all", range(3, 40)),
    "settled-in-memory": ("outages", range(10)),
    "nothing-lost": ("outages", range(2, 10)),
    "applied-again": ("outages", range(10)),
    "no-seams": ("outages in pushes", range(5, 20)),
    "pushed-together": ("outages in pushes", range(2, 20)),
    "impatient": ("disks and all", range(10)),
    "unverified": ("outages", range(10, 30)),
    "never-saved": ("outages", range(10)),
    "seldom-saved": ("outages", range(1, 10)),
    "unnamed": ("outages", range(10)),
    "any-answer": ("network", range(1, 10)),
    "pulls-once": ("quiet", range(10)),
    "own-disk": ("hosts gone", range(14, 20)),
    "weights-on-disk": ("momentum on disks", range(10)),
    "oldest-disk": ("outages", range(10)),
}
"""World and range of seeds in which a planted mistake is found; the first seed finds it now."""


def test_a_thousand_simulations_pass_the_checks_and_some_in_every_world() -> None:
    assert LIVES.keys() == WORLDS.keys() and min(LIVES.values()) >= PARTS
    assert sum(PARTS * (each // PARTS) for each in LIVES.values()) >= 1000


def test_every_mistake_is_to_be_found() -> None:
    assert FOUND.keys() == FAULTS.keys()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("world", WORLDS)
def test_nothing_that_was_acknowledged_is_lost_or_counted_twice(world: str, part: int) -> None:
    judge_lives(world, count(part, PARTS), LIVES[world] * FUZZ // PARTS)


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_lost_or_counted_twice_in_the_first_simulation_of_each_world(world: str) -> None:
    judge_lives(world, count(), FUZZ)


def judge_lives(world: str, seeds: Iterator[int], wanted: int) -> None:
    """Run lives until ``wanted`` were judged; raises AssertionError for a broken one."""
    judged = 0
    while judged < wanted:
        seed = next(seeds)
        life = Simulation(seed, WORLDS[world])
        try:
            life.live()
        except AssertionError as error:
            again = f"python benchmarks/chaos.py --world '{world}' --first {seed} --seeds 1"
            raise AssertionError(f"{world}, seed {seed}: {error}; {again}") from error
        judged += not life.is_lost
        assert judged or seed < 20 * PARTS, "in every life a bucket is lost, and nothing is judged"


@pytest.mark.parametrize("name", FAULTS)
def test_every_mistake_can_be_planted_and_is_taken_out_again(name: str) -> None:
    fault = FAULTS[name]
    right = vars(fault.of)[fault.method]
    with fault.planted():
        assert vars(fault.of)[fault.method] is not right
        with suppress(AssertionError):  # may be found; other exceptions are mistakes of the planted fault
            Simulation(1, replace(WORLDS["quiet"], epochs=2)).live()
    assert vars(fault.of)[fault.method] is right


@pytest.mark.soak
@pytest.mark.parametrize("name", FOUND)
def test_a_planted_mistake_is_found(name: str) -> None:
    world, seeds = FOUND[name]
    (lives,) = live_copies([world], seeds, fault=name)
    assert lives.broken is not None, f"{FAULTS[name].sentence}, and {lives.lives} lives do not show it"
    Simulation(lives.broken.seed, WORLDS[world]).live()  # passes without the fault


def test_a_simulation_is_a_function_of_its_seed_for_any_order_of_sets() -> None:
    words = (
        "from tests.chaos.simulation import Simulation; from tests.chaos.worlds import WORLDS; "
        "life = Simulation(7, WORLDS['everything']); life.live(); "
        "print(life.loop.now, life.loop.events, life.network.messages, *life.transcript, sep='\\n')"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", words],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in (1, 2)
    }
    assert len(told) == 1 and len(next(iter(told)).splitlines()) > 10


def test_a_simulation_without_faults_ends_soon_and_has_checked_every_answer() -> None:
    life = Simulation(1, WORLDS["quiet"])
    life.live()
    assert life.loop.now < 30 and life.judge.said > 100
    assert not any("took over" in each for each in life.transcript)


def test_a_failed_simulation_is_printed_step_by_step_and_repeats_exactly() -> None:
    (lives,) = live_copies(["everything"], range(20), fault="at-once")
    assert lives.broken is not None and lives.broken.sentence
    told = transcript("everything", lives.broken.seed, "at-once")
    assert told[-1].endswith(f"broken: {lives.broken.sentence}")
    for words in ("is killed", "is applied; versions", "written down: bucket", "prepare what is different"):
        assert any(words in each for each in told), words
    assert transcript("everything", lives.broken.seed, "at-once") == told


@pytest.mark.soak
def test_simulations_are_the_same_in_several_processes_and_can_be_resumed(tmp_path: Path) -> None:
    worlds = ["momentum", "few servers"]
    alone = live_copies(worlds, range(30))
    said: list[str] = []
    live_copies(worlds, range(10), out=tmp_path, processes=2)
    begun = json.loads((tmp_path / "chaos.json").read_text())
    assert [each["lives"] for each in begun["worlds"]] == [10, 10]
    both = live_copies(worlds, range(30), out=tmp_path, processes=2, say=said.append)
    for one, other in zip(alone, both, strict=True):
        assert (one.lives, one.messages, one.said) == (other.lives, other.messages, other.said)
    assert not said or "anew" not in said[0]
    again = live_copies(worlds, range(30), out=tmp_path)
    assert again == both  # no life runs again
    live_copies(worlds, range(1), out=tmp_path, fault="at-once", say=said.append)
    assert "lived anew" in said[-1]


def test_worlds_and_mistakes_that_are_not_are_refused() -> None:
    with pytest.raises(UserError, match="no world 'calm'"):
        live_copies(["calm"])
    with pytest.raises(UserError, match="no fault 'none'"):
        live_copies(fault="none")
    assert issubclass(BrokenError, AssertionError)
