"""Servers with older contents on disk: real processes, which are all killed at once."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.replicas.test_replicated_servers import EPOCHS, check_tallies, controller, tallied
from tests.support.replicas.opened_replicas import PATTERNS, Opener, check_account, checkpoint, finish
from tests.support.replicas.opened_replicas import opened as opened

from cotswold.replicas.replicas import Replicas
from cotswold.shards.core.versions import update_count
from cotswold.testing import SmallDisk, why_no_disks

Events = list[tuple[str, Mapping[str, object]]]
REPLICAS, STEP_SECONDS = 2, 0.01
"""Number of replicas, and least seconds of their steps."""

pytestmark = pytest.mark.slow


def told(events: Events, kind: str) -> list[str]:
    return [
        str(more["change" if "sentence" not in more else "sentence"]) for each, more in events if each == kind
    ]


def kill_all(replicas: Replicas) -> None:
    for process in replicas.servers.values():
        os.kill(process, signal.SIGKILL)


def until(replicas: Replicas, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline and not replicas.is_over, replicas.status()
        replicas.proceed(0.05)


def begin(replicas: Replicas) -> None:
    """Run replicas until the disks have contents of all buckets, on a machine of any speed."""
    until(replicas, lambda: replicas._machine._durability.state > 0 and replicas.ledger.total.counted > 500)


def revived(events: Events) -> int:
    return sum(kind == "recovered" for kind, _ in events)


def check_after_losses(replicas: Replicas, epochs: int = EPOCHS) -> None:
    """Check that every sample counts once per epoch in every shard, also after a loss."""
    tallies = finish(replicas, 90.0)
    check_account(replicas)
    total = replicas.ledger.total
    assert (total.counted, total.torn, total.left_out) == (epochs * PATTERNS, 0, 0), total
    assert torch.equal(tallies, torch.full_like(tallies, epochs))


@pytest.mark.parametrize("copies", [1, 3])
def test_all_servers_are_killed_at_once_and_the_run_goes_on_from_their_disks(
    opened: Opener, tmp_path: Path, copies: int
) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(copies=copies, disks=str(disks), silent=20.0)) as replicas:
        for times in (1, 2):
            begin(replicas)
            counted = replicas.ledger.total.counted
            kill_all(replicas)
            until(replicas, lambda times=times: revived(events) >= 4 * times)  # type: ignore[misc]  # mypy and defaults
            assert replicas.ledger.total.counted >= counted - 2000, "no more than a window is lost"
        check_after_losses(replicas)
        assert sorted(replicas.servers) == ["server-0.2", "server-1.2", "server-2.2"]
        assert any("resumes from its disk" in each for each in told(events, "replication"))
        lost = [more for kind, more in events if kind == "samples_lost"]
        named = sum(stop - start for each in lost for start, stop in cast(Any, each["places"]))
        assert named == replicas.ledger.total.lost, "every sample that is handed out again is named"
    assert not disks.exists(), "they are the run's"


@pytest.mark.soak
def test_with_disks_a_server_that_dies_alone_loses_nothing(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    more: dict[str, Any] = {"disks": str(tmp_path / "servers"), "silent": 20.0, "copies": 3}
    with opened(events=events, **tallied(**more)) as replicas:
        for number in range(2):  # the third has all copies, however late others have theirs again
            replicas.proceed(0.7)
            os.kill(replicas.servers[sorted(replicas.servers)[number]], signal.SIGKILL)
        check_tallies(replicas)
    assert not revived(events)


@pytest.mark.soak
def test_servers_and_the_controller_die_at_once(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    with opened(events=events, **tallied(disks=str(tmp_path / "servers"), silent=20.0)) as replicas:
        begin(replicas)
        os.kill(controller(replicas), signal.SIGKILL)
        kill_all(replicas)
        until(replicas, lambda: revived(events) >= 4)
        check_after_losses(replicas)


@pytest.mark.soak
def test_a_checkpoint_that_was_under_way_is_begun_anew(opened: Opener, tmp_path: Path) -> None:
    more: dict[str, Any] = {"disks": str(tmp_path / "servers"), "silent": 20.0}
    with opened(**tallied(**more)) as replicas:
        begin(replicas)
        snapshot = checkpoint(replicas, lambda: kill_all(replicas))
        tallies = snapshot.vectors["x"].view(4, PATTERNS)
        assert torch.equal(tallies, tallies[:1].expand(4, PATTERNS)), "all shards have the same samples"
        assert tallies[0].sum() == snapshot.ledger.total.counted and not snapshot.ledger.total.torn
    with opened(snapshot=snapshot, **tallied()) as replicas:
        check_after_losses(replicas)


@pytest.mark.soak
def test_a_disk_that_is_damaged_is_named_and_another_has_what_it_had(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(disks=str(disks), copies=3, silent=20.0)) as replicas:
        begin(replicas)
        kill_all(replicas)
        (disks / "server-1" / "db" / "CURRENT").write_bytes(b"MANIFEST-000000\n")
        until(replicas, lambda: revived(events) >= 4)
        check_after_losses(replicas)
    assert any("damaged" in each for each in told(events, "disk"))
    shutil.rmtree(disks, ignore_errors=True)


class Watched:
    """Counters of servers, with the time of their arrival."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self.seen: list[tuple[float, float, Mapping[int, int], float]] = []
        """Time of the request, time of the last reply, versions of shards, longest window."""

    def look(self) -> bool:
        began, counts = time.monotonic(), self._replicas.count()
        versions = {shard: version for each in counts for shard, version in each.versions}
        windows = [each.unsaved.window_seconds for each in counts if each.unsaved is not None]
        if len(versions) == 4 and len(windows) == 3:
            self.seen.append((began, time.monotonic(), versions, max(windows)))
        return False

    def age(self, shard: int, version: int, at: float) -> float:
        """Return the time before ``at`` at which the next update had certainly arrived."""
        later = (answered for _, answered, versions, _ in self.seen if versions[shard] > version)
        return at - min(later, default=at)


def look_on(watched: Watched, replicas: Replicas, seconds: float) -> None:
    end = time.monotonic() + seconds
    until(replicas, lambda: watched.look() or time.monotonic() > end)


def rows_of(events: Events) -> list[Mapping[str, Any]]:
    return [row for kind, more in events if kind == "restored" for row in cast(Any, more["rows"])]


def check_window(watched: Watched, rows: list[Mapping[str, Any]], killed: float) -> None:
    """Check that the loss is no older than the window reported at the last request, and that the disk has no
    more than was pushed."""
    asked, _, versions, window = watched.seen[-1]
    # since they were asked: a push that was under way, one of a step that was, and those of later steps
    came = REPLICAS * (2 + (killed - asked) // STEP_SECONDS)
    assert {row["shard"] for row in rows} == set(versions)
    for row in rows:
        assert row["before"] >= update_count(versions[row["shard"]]), "it is known what was counted last"
        assert row["now"] <= row["before"] + came, "the disk has what was so before, or came since"
        assert row["life"] > 1 and row["term"] >= row["life"] and row["server"].startswith("server-")
        assert watched.age(row["shard"], row["now"], killed) <= window + killed - asked


@pytest.mark.soak
def test_what_is_lost_is_no_older_than_the_window_that_was_shown(opened: Opener, tmp_path: Path) -> None:
    events: Events = []
    more: dict[str, Any] = {"disks": str(tmp_path / "servers"), "silent": 20.0, "copies": 1}
    with opened(events=events, **tallied(**more)) as replicas:
        watched = Watched(replicas)
        until(replicas, lambda: watched.look() or replicas.ledger.total.counted > 500)
        look_on(watched, replicas, 1.0)
        kill_all(replicas)
        killed = time.monotonic()
        until(replicas, lambda: len(rows_of(events)) >= 4)
        check_window(watched, rows_of(events), killed)
        assert sum(row["before"] - row["now"] for row in rows_of(events)) > 0, "or it was no random moment"
        check_after_losses(replicas)


@pytest.mark.soak
@pytest.mark.skipif(why_no_disks() is not None, reason=str(why_no_disks()))
def test_while_disks_are_full_training_goes_on_and_what_could_be_lost_is_true(
    opened: Opener, tmp_path: Path
) -> None:
    events: Events = []
    with SmallDisk(tmp_path / "disk", 64) as disk:
        more: dict[str, Any] = {"disks": str(disk.folder / "servers"), "silent": 20.0, "copies": 1}
        with opened(events=events, **tallied(**more, epochs=40)) as replicas:
            watched = Watched(replicas)
            until(replicas, lambda: watched.look() or replicas.ledger.total.counted > 500)
            disk.fill()
            counted = replicas.ledger.total.counted
            until(replicas, lambda: watched.look() or any("no room" in each for each in told(events, "disk")))
            until(replicas, lambda: watched.look() or watched.seen[-1][3] > 2.0)
            # nobody waits for disks
            until(replicas, lambda: watched.look() or replicas.ledger.total.counted > counted + 200)
            until(replicas, lambda: any("writes fail" in each for each in told(events, "disk")))
            watched.look()
            kill_all(replicas)
            killed = time.monotonic()
            until(replicas, lambda: len(rows_of(events)) >= 4)
            check_window(watched, rows_of(events), killed)
            disk.empty()
            until(replicas, lambda: any("accepts writes again" in each for each in told(events, "disk")))
            check_after_losses(replicas, 40)


def flip(contents: Path) -> None:
    """Flip a bit in each page of a server's contents."""
    for place in contents.iterdir():
        content = bytearray(place.read_bytes())
        for at in range(0, len(content), 512):
            content[at] ^= 1
        place.write_bytes(content)


def settle(replicas: Replicas) -> None:
    """Pause all replicas until all counted samples are on disks."""
    replicas.pause()
    until(replicas, lambda: replicas._machine._durability.settled == replicas.ledger.settled)


@pytest.mark.soak
def test_flipped_bits_on_the_disk_of_a_server_that_lives_are_named_and_healed_from_memory(
    opened: Opener, tmp_path: Path
) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(disks=str(disks), copies=1, silent=20.0)) as replicas:
        begin(replicas)
        settle(replicas)
        for each in disks.iterdir():
            flip(each / "contents")

        def healed() -> list[str]:
            return [each for each in told(events, "disk") if "written again from memory" in each]

        buckets = {shard.server for shard in replicas._processes.shards}
        until(
            replicas,
            lambda: all(any(f"; {each} is written" in line for line in healed()) for each in buckets),
        )
        replicas.proceed(2.0)
        counted = replicas.ledger.total.counted
        kill_all(replicas)
        until(replicas, lambda: revived(events) >= 4)
        assert (replicas.ledger.total.counted, replicas.ledger.total.lost) == (counted, 0)
        replicas.resume()
        check_tallies(replicas)


@pytest.mark.soak
def test_what_is_damaged_on_one_disk_comes_from_anothers_after_all_are_killed(
    opened: Opener, tmp_path: Path
) -> None:
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(disks=str(disks), copies=3, silent=20.0)) as replicas:
        begin(replicas)
        settle(replicas)
        flip(disks / "server-0" / "contents")
        flip(disks / "server-2" / "contents")
        counted = replicas.ledger.total.counted
        kill_all(replicas)
        until(replicas, lambda: revived(events) >= 4)
        assert {str(more["name"]) for kind, more in events if kind == "restored"} <= {"server-1.1"}
        assert (replicas.ledger.total.counted, replicas.ledger.total.lost) == (counted, 0)
        assert any("from its disk: " in each for each in told(events, "disk"))
        replicas.resume()
        check_tallies(replicas)


def spoil(index: Path) -> None:
    """Flip bits of a server's index, so that it cannot be opened for writing."""
    for place in index.glob("*.sst"):
        content = bytearray(place.read_bytes())
        content[-4] ^= 1
        place.write_bytes(content)


@pytest.mark.soak
def test_an_index_with_flipped_bits_is_begun_anew_and_the_disk_has_all_copies_again(
    opened: Opener, tmp_path: Path
) -> None:
    """The first server's missing copies come from the others, and then theirs from the first."""
    events: Events = []
    disks = tmp_path / "servers"
    with opened(events=events, **tallied(disks=str(disks), copies=3, silent=20.0)) as replicas:
        begin(replicas)
        for times, damaged in enumerate((("server-1",), ("server-0", "server-2")), 1):
            settle(replicas)
            for each in damaged:
                spoil(disks / each / "db")
            counted = replicas.ledger.total.counted
            kill_all(replicas)
            until(replicas, lambda times=times: revived(events) >= 4 * times)  # type: ignore[misc]  # mypy and defaults
            assert (replicas.ledger.total.counted, replicas.ledger.total.lost) == (counted, 0)
            replicas.resume()
            anew = [each for each in told(events, "disk") if "was rebuilt with the heads" in each]
            assert len(anew) == len({*damaged, *(("server-1",) if times == 2 else ())}), anew
            until(replicas, lambda counted=counted: replicas.ledger.total.counted > counted + 200)  # type: ignore[misc]  # mypy and defaults
            replicas.proceed(3.0)
        assert not any("retrying" in each for each in told(events, "disk"))
        check_tallies(replicas)
