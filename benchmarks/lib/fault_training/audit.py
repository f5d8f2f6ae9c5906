"""Invariants at the end of a run, after any faults of its processes.

Knows: the checkpoint of a run, events of runs and hosts of a cluster, accounts of samples. Does not know:
faults, how the data were made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotswold.wire.names import display_name
from lib.fault_training.monitor import Observations
from lib.fault_training.primaries import ActingInterval, at_once

_LEADS = re.compile(
    r"(bucket \d+ of \S+): .*; (?:secondary )?(\S+) "
    r"(?:took over|leads now|remains its primary|resumes from its disk|starts from its disk), "
    r"term (\d+)"
)
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Verdict:
    """Result of one check."""

    name: str
    holds: bool
    words: str
    """Findings in words."""

    def said(self) -> dict[str, object]:
        """Return the result as plain values."""
        return {"audit": self.name, "holds": self.holds, "found": self.words}


def last_checkpoint(run: Path) -> Mapping[str, Any]:
    """Return the state of the strategy in the newest checkpoint of a run."""
    folders = sorted(each for each in (run / "checkpoints").iterdir() if (each / _MANIFEST).is_file())
    state = json.loads((folders[-1] / _MANIFEST).read_text())["state"]["strategy"]
    assert isinstance(state, dict)
    return state


def events_of(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return all events of some files, ordered by time, without lines that were not completely written."""
    found = []
    for path in paths:
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return sorted(found, key=lambda event: float(event["time"]))


def accounts_add_up(state: Mapping[str, Any], samples: int) -> Verdict:
    """Check that the accounts cover every sample of every epoch, and that each counts at most once."""
    ledger = state["ledger"]
    wrong, total = [], {"counted": 0, "torn": 0, "refused": 0, "lost": 0, "left_out": 0}
    for epoch, account in ledger["accounts"].items():
        for name in total:
            total[name] += account[name]
        known = account["counted"] + account["torn"] + account["refused"] + account["lost"]
        settled = known - account["lost"] + account["left_out"]
        is_over = int(epoch) < ledger["epoch"] or ledger["is_stopped"]
        if account["handed_out"] != known or (is_over and settled != samples):
            wrong.append(f"epoch {epoch}: {account}")
        elif not is_over and settled + sum(stop - start for start, stop in ledger["free"]) != samples:
            wrong.append(f"epoch {epoch}, in progress: {account}")
    words = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in total.items())
    return Verdict("every sample counts once", not wrong, "; ".join(wrong) or words)


def no_sample_is_torn(state: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Verdict:
    """Check that every push is in all shards or in none.

    Shards also have equal numbers of updates, unless a replica died: then samples of a push that some shards
    lack are repeated in pushes of other lengths.
    """
    torn = sum(account["torn"] for account in state["ledger"]["accounts"].values())
    versions = set(state["versions"])
    died = sum(each["kind"] == "cluster_lost" for each in events)
    holds = torn == 0 and (died > 0 or len(versions) == 1)
    words = (
        f"{torn} samples torn, {died} replicas died; {len(state['versions'])} shards got {_said(versions)}"
    )
    return Verdict("every push is in every shard", holds, f"{words} updates each")


def one_primary_a_term(seen: Observations, events: Sequence[Mapping[str, Any]]) -> Verdict:
    """Check that no bucket had two primaries in one term, by the controllers' metadata and events."""
    leads = {(display_name(bucket), term): set(names) for (bucket, term), names in seen.leads.items()}
    told = [each for event in events if (each := _LEADS.match(str(event.get("sentence", ""))))]
    for each in told:
        leads.setdefault((each[1], int(each[3])), set()).add(each[2])
    twice = {key: names for key, names in leads.items() if len(names) > 1}
    words = "; ".join(f"{bucket}, term {term}: {', '.join(names)}" for (bucket, term), names in twice.items())
    found = (
        f"{len(leads):,} terms of {len({bucket for bucket, _ in leads})} buckets, {seen.looks} reads, "
        f"{len(told)} events"
    )
    return Verdict("one primary a term", not twice and bool(leads), words or found)


def no_lease_twice(spells: Sequence[ActingInterval]) -> Verdict:
    """Check by the servers' own records that no two servers acted as primary of a bucket at once."""
    wrong = at_once(spells)
    found = f"{len(spells):,} terms of {len({each.server for each in spells})} servers as primary"
    return Verdict("no lease is held twice", not wrong and bool(spells), "; ".join(wrong[:3]) or found)


def no_process_left(
    left: Sequence[str], ended: Mapping[str, int], wanted: Mapping[str, Sequence[int]]
) -> Verdict:
    """Check that no process is left on any host, and that all programs ended as requested.

    ``wanted`` has exit codes other than 0, by prefix of a name.
    """
    wrong = []
    for name, code in ended.items():
        right = next((codes for begin, codes in wanted.items() if name.startswith(begin)), (0,))
        if code not in right:
            wrong.append(f"{name} exited with {code}")
    words = "; ".join([*left, *wrong]) or f"{len(ended)} programs ended as requested, no process is left"
    return Verdict("no process is left behind", not left and not wrong, words)


def _said(counts: set[int]) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts)):,}"
    return f"{min(counts):,} to {max(counts):,}"
