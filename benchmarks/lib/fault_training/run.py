"""One training on a site, with or without faults: observations, injected faults, audits.

Knows: the schedule of faults, the end of training, the audits. Does not know: how faults are injected, how
trainings are compared.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotswold.bench.measure import Document, rounded
from cotswold.errors import MachineError
from lib.fault_training import audit
from lib.fault_training.cluster import TALLY, Site, SitePlan
from lib.fault_training.injection import Heal, inject, revive
from lib.fault_training.monitor import Observations, Watcher
from lib.fault_training.plan import Fault, Kind, Places, Role, schedule
from lib.fault_training.tally import counts_are_exact

_FIRST_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_SAY_SECONDS = 5.0
_EVALUATE_SECONDS = 300.0
_STOPPED = 128 + 15
_WANTED = {"train": (_STOPPED,), TALLY: (_STOPPED,), f"machine {0}": (0, 1)}
"""Accepted exit codes: a stopped run reports the signal, and Ray's head may have been killed."""
_TAKEN = ("elected", "recovered")
"""Events about another server that continues a bucket after a failure."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Training:
    """Settings of one training; without an ``interval`` there are no faults."""

    places: Places
    folder: Path
    stores: Path
    source: Path
    seconds: float
    overrides: Sequence[str]
    copies: int = 3
    interval: float | None = None
    seed: int = 0
    only: Sequence[tuple[Kind, Role]] = ()
    """Faults that may occur [all]."""

    def schedule(self) -> list[Fault]:
        """Return the schedule of faults."""
        if self.interval is None:
            return []
        return schedule(self.places, self.seed, self.interval, self.seconds, self.only)


def trained(training: Training, say: Say) -> Document:
    """Set up a site, train, inject faults, audit, and remove the site."""
    run = training.folder / "run"
    plan = SitePlan(training.places, training.folder / "site", _shared(training), training.copies)
    with Site(plan, say) as site:
        say("starting the training")
        site.train(run, training.stores, [f"data.source={training.source}", *training.overrides])
        site.count(training.folder / TALLY)
        with closing(Watcher(site, run)) as watcher, site.acting() as acting:
            began = _first_samples(site, watcher)
            befell = _burning(training, site, watcher, began, say)
            passed = site.bytes_passed()
            say("stopping")
            site.stop_training()
        events = audit.events_of(
            [run / "events.jsonl", *(site.station_folder(host) / "events.jsonl" for host in _stations(site))]
        )
        left = site.close_down()
        ended = dict(site.ended)
    window = (began, began + training.seconds)
    say("evaluating on test images")
    return {
        "seconds": training.seconds,
        "samples_a_second": rounded(_samples_at(watcher.seen, window[1]) / training.seconds),
        "test": _tested(run, training.stores),
        "faults": [
            _told(each, until, watcher.seen, events)
            for each, until in zip(befell, [*(each.when for each in befell[1:]), window[1]], strict=False)
        ],
        "audits": [
            each.said()
            for each in (
                *_audits(run, watcher.seen, events, left, ended),
                audit.no_lease_twice(acting.spells),
                counts_are_exact(training.folder / TALLY),
            )
        ],
        "series": [[rounded(when - began), count] for when, count in watcher.seen.samples],
        "members_least": min((count for _, count in watcher.seen.fewest), default=None),
        "computing": rounded(_mean([count for when, count in watcher.seen.replicas if when > began])),
        "sent_bytes": passed,
        "took_over": sum(each["kind"] in _TAKEN for each in events),
    }


@dataclass
class _Befell:
    """An injected fault."""

    fault: Fault
    when: float
    """Time of the injection in seconds of `time.time`."""
    words: str
    heal: Heal | None
    healed: float = math.nan


def _first_samples(site: Site, watcher: Watcher) -> float:
    deadline = time.monotonic() + _FIRST_SECONDS
    while not watcher.samples:
        _check_training(site)
        if time.monotonic() > deadline:
            raise MachineError(f"no sample counts after {_FIRST_SECONDS:g} s; look at {site.plan.folder}")
        watcher.look()
        time.sleep(_LOOK_SECONDS)
    return time.time()


def _burning(training: Training, site: Site, watcher: Watcher, began: float, say: Say) -> list[_Befell]:
    """Inject faults until the time is over; heal all of them at the end, also after an exception."""
    faults, befell, said = training.schedule(), list[_Befell](), 0.0
    try:
        while (now := time.time() - began) < training.seconds:
            _check_training(site)
            watcher.look()
            _heal(befell, time.time())
            if not _is_burning(befell):
                revive(site)
                if len(befell) < len(faults) and now >= faults[len(befell)].at:
                    befell.append(_made(site, faults[len(befell)]))
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                say(_progress(training, watcher, befell, now))
            time.sleep(_LOOK_SECONDS)
    finally:
        _heal(befell, math.inf)
        revive(site)
    return befell


def _made(site: Site, fault: Fault) -> _Befell:
    words, heal = inject(site, fault)
    return _Befell(fault, time.time(), words, heal)


def _heal(befell: Sequence[_Befell], now: float) -> None:
    for each in befell:
        if each.heal is not None and now - each.when >= each.fault.seconds:
            each.heal()
            each.heal, each.healed = None, time.time()


def _is_burning(befell: Sequence[_Befell]) -> bool:
    return any(each.heal is not None for each in befell)


def _check_training(site: Site) -> None:
    for name, each in (("train", site.training), (TALLY, site.tally)):
        assert each is not None, "it was started"
        if each.poll() is not None:
            said = (site.plan.folder / f"{name}-{site.places.trainer}.log").read_text().strip().splitlines()
            raise MachineError(f"{name} exited unexpectedly: {' / '.join(said[-3:])}")


def _progress(training: Training, watcher: Watcher, befell: Sequence[_Befell], now: float) -> str:
    fault = f"; {befell[-1].fault}: {befell[-1].words}" if _is_burning(befell) else ""
    return (
        f"{now:.0f} of {training.seconds:.0f} s: {watcher.samples:,} samples, "
        f"{watcher.samples / max(now, 1.0):,.0f} per second, {len(befell)} faults{fault}"
    )


# --- results ---


def _samples_at(seen: Observations, when: float) -> float:
    """Return the samples counted at a moment, interpolated between observations."""
    before = [each for each in seen.samples if each[0] <= when]
    after = [each for each in seen.samples if each[0] > when]
    if not before:
        return 0.0
    if not after:
        return float(before[-1][1])
    (start, first), (stop, last) = before[-1], after[0]
    return first + (last - first) * (when - start) / (stop - start)


def _told(befell: _Befell, until: float, seen: Observations, events: Sequence[Mapping[str, Any]]) -> Document:
    """Return a fault with the cluster's events about it until the next fault."""
    fault = befell.fault
    near = [each for each in events if befell.when <= float(each["time"]) < until]
    over = [float(each["time"]) - befell.when for each in near if each["kind"] in _TAKEN]
    rate = (_samples_at(seen, until) - _samples_at(seen, befell.when)) / (until - befell.when)
    return {
        "at": fault.at,
        "kind": fault.kind,
        "role": fault.role,
        "host": fault.host,
        "seconds": fault.seconds,
        "done": befell.words,
        "healed_after": rounded(befell.healed - befell.when),
        "took_over": len(over),
        "first_took_over_s": rounded(min(over)) if over else None,
        "last_took_over_s": rounded(max(over)) if over else None,
        "samples_a_second": rounded(rate),
        "longest_pause_s": rounded(_longest_pause(seen, befell.when, until)),
        "events": sorted({str(each.get("change", each["kind"])) for each in near} - _USUAL),
    }


def _longest_pause(seen: Observations, begin: float, end: float) -> float:
    """Return the longest observed time without a counted sample."""
    pause, since, before = 0.0, begin, _samples_at(seen, begin)
    for when, count in seen.samples:
        if begin < when <= end:
            if count > before:
                since, before = when, count
            pause = max(pause, when - since)
    return pause


_USUAL = {"step", "validation", "cluster_epoch", "checkpoint", "elected"}


def _audits(
    run: Path,
    seen: Observations,
    events: Sequence[Mapping[str, Any]],
    left: Sequence[str],
    ended: Mapping[str, int],
) -> list[audit.Verdict]:
    state = audit.last_checkpoint(run)
    samples = next(int(each["samples"]) for each in events if each["kind"] == "start")
    return [
        audit.accounts_add_up(state, samples),
        audit.no_sample_is_torn(state, events),
        audit.one_primary_a_term(seen, events),
        audit.no_process_left(left, ended, _WANTED),
    ]


def _tested(run: Path, stores: Path) -> Document:
    """Return the fraction of test images classified correctly at the end, and its standard error."""
    words = [sys.executable, "-m", "cotswold", "evaluate", str(run), "--stores", str(stores), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_EVALUATE_SECONDS, check=False)
    if done.returncode:
        raise MachineError(f"the run cannot be evaluated: {done.stderr.strip().splitlines()[-1:]}")
    confusion = json.loads(done.stdout)["confusion"]
    count = sum(map(sum, confusion))
    right = sum(row[place] for place, row in enumerate(confusion)) / count
    return {"right": rounded(right), "error": rounded(math.sqrt(right * (1 - right) / count)), "of": count}


def _stations(site: Site) -> Sequence[int]:
    return site.places.servers


def _shared(training: Training) -> list[Path]:
    return [training.folder, training.stores, training.source]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
