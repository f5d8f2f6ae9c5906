"""benchmarks/fault_training.py: schedules of faults, audits, and a minute of training with faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cotswold.bench.measure import Document
from cotswold.errors import UserError
from cotswold.replication.controller.election import Election, ElectionReason
from cotswold.replication.controller.event_text import election_event
from cotswold.testing import why_no_disks, why_not
from cotswold.wire import Group
from fault_training import fault_training
from lib.command import main
from lib.fault_training import audit
from lib.fault_training.monitor import Observations
from lib.fault_training.plan import KINDS, LINKS, Places, named, schedule
from lib.fault_training.plots import rates
from lib.fault_training.primaries import ActingInterval
from lib.fault_training.summary import verdicts
from lib.fault_training.tally import BATCH, SHARD, counts_are_exact

WHY_NOT = why_not() or why_no_disks()
TEN_MINUTES = (15.0, 600.0)
"""Seconds between faults, and in total."""
SAMPLES = 100


@pytest.mark.parametrize("hosts", [4, 5, 6])
@pytest.mark.parametrize("seed", range(20))
def test_a_fault_is_over_before_the_next_and_the_trainer_is_none_of_those(hosts: int, seed: int) -> None:
    places = Places(hosts)
    faults = schedule(places, seed, *TEN_MINUTES)
    assert faults == schedule(places, seed, *TEN_MINUTES)
    assert [each.at for each in faults] == [15.0 * (number + 1) for number in range(39)]
    for each in faults:
        assert 3.0 <= each.seconds <= 9.0 and each.host in places.of(each.role)
        assert each.kind not in LINKS or each.host != places.trainer
    (dead,) = [number for number, each in enumerate(faults) if (each.kind, each.role) == ("kill", "head")]
    later = faults[dead + 1 :]
    assert 25 < dead < 35 and not any(each.role == "head" for each in later)
    assert not any((each.kind, each.role) == ("kill", "replica") for each in later)


def test_every_kind_befalls_every_role_in_ten_minutes() -> None:
    wanted = {(kind, role) for kind, roles in KINDS.items() for role in roles}
    for seed in range(5):
        found = {(each.kind, each.role) for each in schedule(Places(5), seed, *TEN_MINUTES)}
        late = {("kill", "replica"), *((kind, "head") for kind in KINDS)}  # none after the head's death
        assert wanted - found <= late


def test_a_minute_has_faults_too_and_seeds_differ() -> None:
    some = [schedule(Places(4), seed, 15.0, 60.0) for seed in range(10)]
    assert {len(each) for each in some} == {3} and len({tuple(each) for each in some}) == 10


def test_faults_that_are_named_come_alone() -> None:
    only = [named("kill server"), named("stop server")]
    found = schedule(Places(5), 3, *TEN_MINUTES, only=only)
    assert {(each.kind, each.role) for each in found} == set(only) and len(found) == 39
    with pytest.raises(UserError, match="--fault 'kill nobody' is unknown; choose from: kill server"):
        named("kill nobody")


@pytest.mark.parametrize("hosts", [3, 7])
def test_too_few_or_too_many_hosts_are_refused(hosts: int) -> None:
    with pytest.raises(UserError, match=f"--hosts {hosts}: .*give 4 to 6"):
        Places(hosts)


def account(**counts: int) -> dict[str, int]:
    names = ("handed_out", "counted", "torn", "refused", "lost", "left_out")
    return {**dict.fromkeys(names, 0), **counts}


def state(*accounts: Mapping[str, int], free: int = 0, versions: tuple[int, ...] = (7, 7)) -> dict[str, Any]:
    return {
        "ledger": {
            "epoch": len(accounts) - 1,
            "free": [[0, free]] if free else [],
            "accounts": {str(epoch): each for epoch, each in enumerate(accounts)},
            "is_stopped": False,
        },
        "versions": list(versions),
    }


WHOLE = account(handed_out=110, counted=100, lost=10)
HALF = account(handed_out=40, counted=40)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (state(WHOLE, HALF, free=60), True),
        (state(WHOLE, HALF, free=59), False),
        (state(account(handed_out=100, counted=101), HALF, free=60), False),
        (state(account(handed_out=99, counted=99), HALF, free=60), False),
        (state(account(handed_out=99, counted=98, refused=1, left_out=1), HALF, free=60), True),
        (state(WHOLE, account(handed_out=41, counted=40), free=60), False),
    ],
)
def test_accounts_add_up_or_the_epoch_is_named(given: Mapping[str, Any], holds: bool) -> None:
    found = audit.accounts_add_up(given, SAMPLES)
    assert found.holds is holds
    assert ("110" in found.words or "counted" in found.words) if holds else "epoch" in found.words


TORN = account(handed_out=41, counted=40, torn=1)
DEATH = {"kind": "cluster_lost", "time": 0.0, "name": "replica-1"}


@pytest.mark.parametrize(
    ("given", "deaths", "holds"),
    [
        (state(WHOLE, HALF), 0, True),
        (state(WHOLE, HALF), 3, True),
        (state(WHOLE, HALF, versions=(7, 8)), 0, False),
        (state(WHOLE, HALF, versions=(7, 8)), 1, True),
        (state(WHOLE, TORN, versions=(7, 8)), 0, False),
        (state(WHOLE, TORN, versions=(7, 8)), 1, False),
        (state(WHOLE, TORN, versions=(7, 10)), 1, False),
        (state(WHOLE, TORN), 1, False),
    ],
)
def test_a_push_that_is_in_one_shard_alone_is_found(
    given: Mapping[str, Any], deaths: int, holds: bool
) -> None:
    assert audit.no_sample_is_torn(given, [DEATH] * deaths).holds is holds


def told(number: int, server: str, term: int) -> dict[str, object]:
    """Return an event as written by a controller."""
    old = Group(f"run/{number:04}", term - 1, "z", (server,))
    election = Election(old, 1.0, ElectionReason.LOST, "primary z ended", 1.0)
    group = Group(f"run/{number:04}", term, server)
    return {"time": 0.0, "sentence": election_event(group, election, 2.0).sentence}


def test_two_primaries_of_a_term_are_found_whoever_told_of_them() -> None:
    seen = Observations(leads={("run/0001", 1): {"a"}, ("run/0001", 2): {"b"}}, looks=2)
    assert audit.one_primary_a_term(seen, [told(1, "b", 2), told(2, "c", 2)]).holds
    found = audit.one_primary_a_term(seen, [told(1, "c", 2)])
    assert not found.holds and "bucket 1 of run, term 2: b, c" in found.words.replace("c, b", "b, c")
    assert not audit.one_primary_a_term(Observations(), []).holds, "nothing was seen"


@pytest.mark.parametrize(
    ("spells", "holds"),
    [
        ([], False),
        (
            [
                ActingInterval("1", 1, "a", 0.0, 5.0),
                ActingInterval("1", 2, "b", 5.1, 9.0),
                ActingInterval("2", 1, "b", 0.0, 9.0),
            ],
            True,
        ),
        ([ActingInterval("1", 1, "a", 0.0, 5.2), ActingInterval("1", 2, "b", 5.1, 9.0)], False),
        ([ActingInterval("1", 1, "a", 0.0, 5.0), ActingInterval("1", 1, "b", 5.1, 9.0)], False),
        (
            [
                ActingInterval("1", 1, "a", 0.0, 9.0),
                ActingInterval("1", 2, "a", 3.0, 4.0),
                ActingInterval("1", 3, "b", 5.0, 6.0),
            ],
            False,
        ),
    ],
)
def test_two_servers_that_speak_for_a_bucket_at_once_are_found(
    spells: list[ActingInterval], holds: bool
) -> None:
    assert audit.no_lease_twice(spells).holds is holds


@pytest.mark.parametrize(
    ("shards", "torn", "holds"),
    [
        ([3, 3, 3], 0, True),
        ([3, 2, 3], 0, False),
        ([3, 4, 3], 0, False),
        ([3, 4, 3], 1, True),
        ([3, 5, 3], 1, False),
        ([3, 3.5, 3], 1, False),
    ],
)
def test_parameters_that_are_not_the_count_of_updates_are_found(
    shards: list[float], torn: int, holds: bool, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoints" / "1"
    checkpoint.mkdir(parents=True)
    counts = -torch.tensor(shards, dtype=torch.float32).repeat_interleave(SHARD)
    save_file({"network.counts": counts}, checkpoint / "00000.safetensors")
    accounts = {"0": account(counted=BATCH), "1": account(counted=2 * BATCH, torn=torn * BATCH)}
    manifest = {"state": {"strategy": {"ledger": {"accounts": accounts}}}}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    found = counts_are_exact(tmp_path)
    assert found.holds is holds and f"the ledger {3 * BATCH} samples" in found.words


def test_who_is_left_or_ended_otherwise_is_named() -> None:
    wanted = {"train": (143,)}
    assert audit.no_process_left([], {"train": 143, "station 0": 0}, wanted).holds
    left = audit.no_process_left(["host 1: 5 sleep"], {"train": 143}, wanted)
    assert not left.holds and "sleep" in left.words
    failed = audit.no_process_left([], {"train": 1, "station 0": -9}, wanted)
    assert not failed.holds and failed.words == "train exited with 1; station 0 exited with -9"


def training(rate: float, right: float, holds: bool = True) -> Document:
    return {
        "samples_a_second": rate,
        "test": {"right": right, "error": 0.001},
        "faults": [],
        "audits": [{"audit": "every sample counts once", "holds": holds, "found": "all"}],
    }


@pytest.mark.parametrize(
    ("burnt", "missed"),
    [
        (training(950.0, 0.98), set()),
        (training(890.0, 0.98), {"throughput with faults"}),
        (training(950.0, 0.97), {"accuracy on test images"}),
        (training(950.0, 0.98, holds=False), {"every sample counts once"}),
    ],
)
def test_a_bar_that_is_missed_is_said(burnt: Document, missed: set[str]) -> None:
    rows = verdicts([training(1000.0, 0.981)], [burnt])
    assert len(rows) == 3 and {row["what"] for row in rows if row["holds"] == "NO"} == missed


def test_rates_are_of_the_last_seconds() -> None:
    assert rates([(0.0, 0.0), (1.0, 10.0), (2.0, 40.0), (4.0, 40.0)], 2.0) == [
        (1.0, 10.0),
        (2.0, 20.0),
        (4.0, 0.0),
    ]


def test_a_time_without_faults_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(fault_training, ["--minutes", "0.2", "--out", str(tmp_path)])
    assert left.value.code == 2 and "--minutes 0.2 is too short" in capsys.readouterr().err


@pytest.mark.soak
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")
@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'")
def test_half_a_minute_of_faults_harms_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--minutes", "0.5", "--interval", "10", "--hosts", "4", "--seed", "1", "--only-faults"]
    words += ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path), "--keep", str(tmp_path / "kept")]
    with pytest.raises(SystemExit) as left:
        main(fault_training, words)
    assert left.value.code == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "fault-training.json").read_text())
    (one,) = found["trainings"]
    assert len(one["faults"]) == 2 and one["samples_a_second"] > 0
    assert [each for each in one["audits"] if not each["holds"]] == []
    assert (tmp_path / "fault-training.svg").read_text().startswith("<?xml")
    assert "every sample counts once" in capsys.readouterr().out
