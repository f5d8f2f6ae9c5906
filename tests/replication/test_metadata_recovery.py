"""The controllers' metadata restored from disks, and cases left to an operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cotswold.errors import UserError
from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.replication.controller.bucket_map import BucketMap
from cotswold.replication.controller.leader_election import CLUSTER, LEADER
from cotswold.replication.disk.bucket_format import write_saved
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.metadata_recovery import (
    CLUSTER_FILE,
    RUNS_FOLDER,
    read_disks,
    recover,
    recover_alone,
)
from cotswold.replication.replica.saved_bucket import DAMAGED_SUFFIX, SavedBucket
from cotswold.replication.run_description import Description
from cotswold.shards.runtime.arithmetic import raw
from cotswold.wire import BucketChange, Group

RUN, NAME = "c83a0b833eac6e20", "abc-1"
_SETTINGS = AsyncSettings(RUN, "x", Sgd(), {"weights": 4}, 4, QueueLimits(1 << 20, 1 << 20), Staleness())
TEXT = Description(RUN, (("weights", 32, 4),), "float32", 128, 4, settings_as_dict(_SETTINGS)).text
DESCRIPTION = Description.of(TEXT)
BUCKETS = DESCRIPTION.buckets


def bucket(name: str, rank: tuple[int, int, int], members: tuple[str, ...] = ()) -> SavedBucket:
    life, term, index = rank
    shards = [each for each in DESCRIPTION.shards if each.server == name]
    rows = {("x", each.number): bytes(raw(np.zeros(each.stop - each.start, np.float32))) for each in shards}
    numbers = tuple(each.number for each in shards)
    change = BucketChange(numbers, (1,) * len(shards), (), (), (), (), (), 0, 0, None, None, 0)
    return SavedBucket(name, life, term, index, change, ("x",), rows, members)


def disk(
    folder: Path,
    name: str,
    buckets: Iterable[str] = BUCKETS,
    rank: tuple[int, int, int] = (0, 3, 7),
    *,
    cluster: str = NAME,
    text: str = TEXT,
    members: tuple[str, ...] = (),
) -> Path:
    path = folder / "servers" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write_saved(path, [bucket(each, rank, members) for each in buckets])
    (path / CLUSTER_FILE).write_text(cluster)
    if text:
        (path / RUNS_FOLDER).mkdir()
        (path / RUNS_FOLDER / RUN).write_text(text)
    return path


def written(state: Path) -> tuple[BucketMap, dict[str, str]]:
    """Return the map of the runs, and the primaries."""
    with closing(MetadataLocation(sqlite=str(state)).open()) as opened:
        found = BucketMap()
        found.load(opened.read(""))
        found.finish_loading()
        return found, opened.read(LEADER)


def delete(state: Path) -> None:
    state.unlink()


def truncate(state: Path) -> None:
    state.write_bytes(state.read_bytes()[:5000])


def flip(state: Path) -> None:
    whole = bytearray(state.read_bytes())
    whole[whole.index(b"server-a") + 2] ^= 4
    state.write_bytes(whole)


def empty(state: Path) -> None:
    state.write_bytes(b"")


@pytest.mark.parametrize("harm", [delete, truncate, flip, empty], ids=lambda harm: harm.__name__)
def test_a_host_makes_a_lost_or_damaged_state_again_from_its_disks(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    state = tmp_path / "state.sqlite"
    disk(tmp_path, "server-a-0", rank=(0, 3, 7))
    disk(tmp_path, "server-a-1", BUCKETS[:2], rank=(0, 3, 9))
    assert recover_alone(state, tmp_path / "servers").startswith(
        f"{state} was lost or damaged and was rebuilt"
    )
    harm(state)
    told = recover_alone(state, tmp_path / "servers")
    assert "4 buckets of 1 run of cluster abc-1" in told
    assert ("; the damaged one was moved to " in told) is (harm is not delete)
    found, leading = written(state)
    assert found.runs == {RUN: TEXT}
    assert found.groups == {
        name: Group(name, 3, "server-a-1.restored", ("server-a-0.restored",))
        if name in BUCKETS[:2]
        else Group(name, 3, "server-a-0.restored")
        for name in BUCKETS
    }, "the disk that has lost the least, and others of the same term"
    assert leading[CLUSTER] == NAME and json.loads(leading[LEADER])[1] > 1_000_000
    assert recover_alone(state, tmp_path / "servers") == "", "it is sound"


def test_a_later_incarnation_or_term_is_more_than_a_greater_index(tmp_path: Path) -> None:
    disk(tmp_path, "server-a-0", rank=(4, 5, 1))
    disk(tmp_path, "server-a-1", rank=(0, 3, 900))
    recover_alone(tmp_path / "state.sqlite", tmp_path / "servers")
    found, _ = written(tmp_path / "state.sqlite")
    assert set(found.groups.values()) == {
        Group(each, 5, "server-a-0.restored", incarnation=4) for each in BUCKETS
    }


def test_a_state_names_the_disks_of_other_hosts_that_may_have_more(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    disk(tmp_path, "server-a-0", rank=(0, 2, 9), members=("server-a-0", "server-z-0"))
    disk(tmp_path, "server-a-1", rank=(0, 3, 7), members=("server-a-1.4", "server-b-0", "server-c-2.1"))
    told = recover_alone(state, tmp_path / "servers")
    assert told.endswith(
        "; server-b-0, server-c-2 may have newer data of some: controllers wait for them for up to a minute"
    )
    secondaries = ("server-b-0.restored", "server-c-2.restored")
    assert set(written(state)[0].groups.values()) == {
        Group(each, 3, "server-a-1.restored", secondaries) for each in BUCKETS
    }


def test_a_disk_that_was_read_and_has_nothing_has_no_more_than_others(tmp_path: Path) -> None:
    disk(tmp_path, "server-a-0", members=("server-a-0", "server-a-1"))
    disk(tmp_path, "server-a-1", ())
    assert "may have more" not in recover_alone(tmp_path / "state.sqlite", tmp_path / "servers")


def test_a_host_that_has_not_everything_leaves_it_to_an_operator_who_names_the_others(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state.sqlite"
    disk(tmp_path / "a", "server-a-0", BUCKETS[:3])
    told = recover_alone(state, tmp_path / "a" / "servers")
    assert f"run {RUN}: no disk has 1 bucket of 4 ({BUCKETS[3]}); name the folders of all hosts" in told
    assert "cotswold cluster recover" in told and not state.exists()
    other = disk(tmp_path / "b", "server-b-0", BUCKETS[3:])
    recover(state, read_disks([tmp_path / "a" / "servers" / "server-a-0", other]))
    assert written(state)[0].groups[BUCKETS[3]].primary == "server-b-0.restored"


def test_disks_that_contradict_each_other_make_no_state(tmp_path: Path) -> None:
    disk(tmp_path / "one", "server-a-0")
    disk(tmp_path / "one", "server-a-1", cluster="xyz-1")
    disk(tmp_path / "two", "server-a-0")
    disk(tmp_path / "two", "server-a-1", text=TEXT.replace("float32", "float64"))
    disk(tmp_path / "three", "server-a-0", text="")
    why = {
        each: recover_alone(tmp_path / each / "state.sqlite", tmp_path / each / "servers")
        for each in ("one", "two", "three")
    }
    assert "is of cluster abc-1, and" in why["one"] and "describe it differently" in why["two"]
    assert "no disk has its description" in why["three"]
    assert not list(tmp_path.rglob("state.sqlite*"))


def test_a_run_that_is_left_out_is_in_no_state(tmp_path: Path) -> None:
    found = read_disks([disk(tmp_path, "server-a-0", text="")])
    with pytest.raises(UserError, match="no bucket of a cluster"):
        recover(tmp_path / "state.sqlite", found, [RUN])


def test_only_runs_that_are_in_the_state_must_be_described_alike(tmp_path: Path) -> None:
    places = [disk(tmp_path, "server-a-0"), disk(tmp_path, "server-a-1")]
    for number, place in enumerate(places):
        (place / RUNS_FOLDER / "0123456789abcdef").write_text(f"left by release {number}")
    assert read_disks(places).runs == (RUN,)
    recover(tmp_path / "state.sqlite", read_disks(places))


def test_a_damaged_disk_that_was_moved_aside_is_nobodys(tmp_path: Path) -> None:
    """No server opens it again, so controllers would wait endlessly."""
    disk(tmp_path, f"server-a-0{DAMAGED_SUFFIX}1700000000", rank=(0, 9, 9), cluster="xyz-1")
    disk(tmp_path, "server-a-0")
    told = recover_alone(tmp_path / "state.sqlite", tmp_path / "servers")
    assert "was rebuilt" in told
    groups = written(tmp_path / "state.sqlite")[0].groups
    assert {each.primary for each in groups.values()} == {"server-a-0.restored"}


def test_a_description_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    place = disk(tmp_path, "server-a-0", text="")
    (place / RUNS_FOLDER / RUN).mkdir(parents=True)
    told = recover_alone(tmp_path / "state.sqlite", tmp_path / "servers")
    assert f"{place / RUNS_FOLDER / RUN} cannot be read" in told


def test_a_state_that_has_runs_is_never_written_over(tmp_path: Path) -> None:
    state, place = tmp_path / "state.sqlite", disk(tmp_path, "server-a-0")
    recover(state, read_disks([place]))
    before = written(state)[0].groups
    with pytest.raises(UserError, match="nothing needs recovery"):
        recover(state, read_disks([place]))
    assert written(state)[0].groups == before


def test_a_host_without_disks_of_a_cluster_has_nothing_to_make_a_state_of(tmp_path: Path) -> None:
    (tmp_path / "servers" / "server-a-0").mkdir(parents=True)
    assert recover_alone(tmp_path / "state.sqlite", tmp_path / "servers") == ""
    assert recover_alone(tmp_path / "state.sqlite", tmp_path / "nothing") == ""


def test_a_state_that_was_made_since_another_was_lost_gives_way_unless_it_has_runs(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    disk(tmp_path, "server-a-0")
    with closing(MetadataLocation(sqlite=str(state)).open()) as opened:
        opened.transact([], [(CLUSTER, "xyz-1"), (LEADER, json.dumps(["a", 3]))])
    assert "was rebuilt" in recover_alone(state, tmp_path / "servers")
    found, leading = written(state)
    assert set(found.groups) == set(BUCKETS) and leading[CLUSTER] == NAME


def test_a_state_of_the_same_cluster_from_which_the_runs_were_removed_stays(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    disk(tmp_path, "server-a-0")
    with closing(MetadataLocation(sqlite=str(state)).open()) as opened:
        opened.transact([], [(CLUSTER, NAME), (LEADER, json.dumps(["a", 3]))])
    assert recover_alone(state, tmp_path / "servers") == ""
    assert not written(state)[0].groups
