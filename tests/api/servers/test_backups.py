"""Backups of clusters: reports of `cotswold verify` about intact and damaged ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.replication.disk.test_rebuilt_index import spoil, tables

from cotswold.api.servers.backups import restore_backup, write_backup
from cotswold.api.verify import verify
from cotswold.errors import DiskFullError, FormatError, MachineError, StoreError, UserError
from cotswold.optim.server_rules import Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.replication.client.admin import AdminClient
from cotswold.replication.disk import bucket_format as saved_buckets
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.metadata.interface import Item
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.replication.run_description import Description
from cotswold.shards.runtime.arithmetic import raw
from cotswold.wire import BucketChange, Group

RUN = "c83a0b833eac6e20"


class Standing:
    """A cluster with one run, seen by the client of a backup."""

    def __init__(self) -> None:
        settings = AsyncSettings(
            RUN, "x", Sgd(), {"weights": 4}, 4, QueueLimits(1 << 20, 1 << 20), Staleness()
        )
        self._description = Description(
            RUN, (("weights", 32, 4),), "float32", 128, 4, settings_as_dict(settings)
        )

    def groups(self) -> dict[str, Group]:
        return {each: Group(each, 3, "server-a-0") for each in self._description.buckets}

    def description(self, run: str) -> str:
        return self._description.text

    def export(self, buckets: Sequence[str]) -> Iterator[SavedBucket]:
        for bucket in buckets:
            shards = [each for each in self._description.shards if each.server == bucket]
            numbers = {("x", each.number): _numbers(each.start, each.stop) for each in shards}
            names = tuple(each.number for each in shards)
            change = BucketChange(names, (1,) * len(shards), (), (), (), (), (), 0, 0, None, None, 0)
            yield SavedBucket(bucket, 0, 3, 7, change, ("x",), numbers)


def _numbers(start: int, stop: int) -> bytes:
    return bytes(cast(bytes, raw(np.arange(start, stop, dtype=np.float32))))


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    folder = tmp_path / "backup"
    said = write_backup(cast(AdminClient, Standing()), folder, None, lambda doing, done: None)
    assert said.startswith(
        f"{folder} has 4 buckets of 1 run, and the parameters of each run in checkpoints/RUN; "
    )
    assert (
        f"cotswold verify {folder} checks it" in said
        and f"cotswold cluster restore {folder} --folder" in said
    )
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def flip(folder: Path, content: bytes) -> None:
    (place,) = (each for each in folder.rglob("*") if each.is_file() and content in each.read_bytes())
    whole = bytearray(place.read_bytes())
    whole[whole.index(content) + 7] ^= 4
    place.write_bytes(whole)


def test_a_sound_backup_is_found_to_be_so_and_nothing_in_it_is_changed(backup: Path) -> None:
    before = contents(backup)
    found = verify(backup, progress=False)
    assert found.kind == "backup" and found.is_valid, found.findings
    assert contents(backup) == before


def test_buckets_are_verified_where_they_are_and_only_their_index_is_copied(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[str]()

    def copyfile(one: Path, other: Path) -> None:
        copied.append(one.parent.name)
        Path(other).write_bytes(one.read_bytes())

    monkeypatch.setattr("shutil.copyfile", copyfile)
    assert verify(backup, progress=False).is_valid
    assert "db" in copied and "contents" not in copied


def test_no_room_for_the_index_is_not_taken_for_damage(backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copyfile(one: Path, other: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", copyfile)
    with pytest.raises(DiskFullError, match="TMPDIR"):
        verify(backup, progress=False)


def test_a_bit_that_is_flipped_in_a_bucket_or_a_checkpoint_is_named(backup: Path) -> None:
    flip(backup / "buckets", _numbers(32, 64))
    (damaged, lacks) = verify(backup, progress=False).findings
    assert f"{RUN}/" in damaged and "lacks" in lacks
    flip(backup / "checkpoints", _numbers(0, 16))
    assert any(".safetensors" in each for each in verify(backup, progress=False).findings)


def test_what_a_backup_lacks_is_named(backup: Path) -> None:
    told = json.loads((backup / "backup.json").read_text())
    told["buckets"][f"{RUN}/9999"] = [1, 0]
    (backup / "backup.json").write_text(json.dumps(told))
    shutil.rmtree(backup / "checkpoints")
    one, other = verify(backup, progress=False).findings
    assert f"lacks {RUN}/9999" in one and "has no checkpoint" in other
    (backup / "backup.json").write_text("{")
    assert len(verify(backup, progress=False).findings) == 1


def _spoiled_table(buckets: Path) -> None:
    spoil(tables(buckets)[0], 0.02)


def _shorter_manifest(buckets: Path) -> None:
    (place,) = (buckets / "db").glob("MANIFEST-*")
    place.write_bytes(place.read_bytes()[:-1])


@pytest.mark.parametrize(
    "spoil_index",
    [
        _spoiled_table,
        _shorter_manifest,
        lambda buckets: (buckets / "format.json").write_text("{"),
        lambda buckets: (buckets / "format.json").unlink(),
    ],
    ids=["table", "manifest", "format", "no format"],
)
def test_a_damaged_index_is_named_in_the_backup_and_another_backup_is_the_remedy(
    spoil_index: Callable[[Path], object], backup: Path
) -> None:
    spoil_index(backup / "buckets")
    damaged, lacks = verify(backup, progress=False).findings
    assert damaged.startswith(f"{backup / 'buckets'}") and "is damaged (" in damaged
    assert "cotswold-verify" not in damaged and "server" not in damaged and "move" not in damaged
    assert damaged.endswith("; take another backup") and lacks.endswith("; take another backup")


class Etcd:
    """A metadata store in memory that accepts a limited number of transactions."""

    def __init__(self, most: int = 1000) -> None:
        self.of: dict[str, str] = {}
        self.most = most

    def read(self, prefix: str, start: str = "", limit: int | None = None) -> dict[str, str]:
        return dict(self.of)

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        if any(self.of.get(key) != value for key, value in compare):
            return False
        self.most -= 1
        if self.most < 0 and any(value is not None for _, value in put):
            raise MachineError("most of etcd's members are gone")
        for key, value in put:
            self.of.pop(key, None)
            self.of |= {} if value is None else {key: value}
        return True

    def close(self) -> None: ...


PLACE = MetadataLocation(etcd=("10.0.0.1:2379", "10.0.0.2:2379"), prefix="mine/")


def test_what_starts_a_restored_host_is_said_as_a_whole(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Etcd()
    monkeypatch.setattr(MetadataLocation, "open", lambda self: state)
    folder = tmp_path / "new host"
    said = restore_backup(backup, folder, "10.0.0.1", "", PLACE, "10.0.0.1,10.0.0.2")
    assert said.startswith(f"{folder} has 4 buckets of 1 run; now start this host before any other, with --")
    assert said.endswith(
        f"cotswold cluster start --folder '{folder}' --listen 10.0.0.1 --controllers 10.0.0.1,10.0.0.2 "
        "--etcd 10.0.0.1:2379,10.0.0.2:2379 --etcd-prefix mine/"
    )
    assert state.of


@pytest.mark.parametrize("state", [Etcd(most=1), Etcd(most=0)])
def test_a_restore_that_fails_leaves_nothing_and_can_be_tried_again(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Etcd
) -> None:
    monkeypatch.setattr(MetadataLocation, "open", lambda self: state)
    with pytest.raises(MachineError):
        restore_backup(backup, tmp_path / "host", "127.0.0.1", "", PLACE)
    assert not state.of and not list((tmp_path / "host").iterdir())
    state.most = 1000
    restore_backup(backup, tmp_path / "host", "127.0.0.1", "", PLACE)


def test_a_damaged_backup_is_not_restored_in_part(backup: Path, tmp_path: Path) -> None:
    flip(backup / "buckets", _numbers(32, 64))
    with pytest.raises(StoreError):
        restore_backup(backup, tmp_path / "host", "127.0.0.1", "", None)
    assert not list((tmp_path / "host").iterdir())


def test_a_state_that_has_a_cluster_is_found_before_anything_is_written(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Etcd()
    state.of["run/other/0"] = "{}"
    monkeypatch.setattr(MetadataLocation, "open", lambda self: state)
    monkeypatch.setattr(saved_buckets, "write_saved", None)  # not to be called
    with pytest.raises(UserError, match="already contains a cluster"):
        restore_backup(backup, tmp_path / "host", "127.0.0.1", "", PLACE)
    assert state.of == {"run/other/0": "{}"} and not list((tmp_path / "host").iterdir())


@pytest.mark.parametrize("run", ["../../elsewhere", "..", "/tmp/elsewhere", ""])
def test_a_backup_with_a_run_whose_name_is_a_path_is_none(backup: Path, tmp_path: Path, run: str) -> None:
    told = json.loads((backup / "backup.json").read_text())
    told["runs"] = {run: told["runs"][RUN]}
    (backup / "backup.json").write_text(json.dumps(told))
    (finding,) = verify(backup, progress=False).findings
    assert "has an invalid name" in finding
    with pytest.raises(FormatError, match="has an invalid name"):
        restore_backup(backup, tmp_path / "host", "127.0.0.1", "", None)


def test_a_run_whose_name_is_a_path_is_not_backed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group("../../elsewhere/0000", 3, "server-a-0")
    monkeypatch.setattr(Standing, "groups", lambda self: {group.bucket: group})
    with pytest.raises(UserError, match="is not valid for a folder"):
        write_backup(cast(AdminClient, Standing()), tmp_path / "backup", None, lambda doing, done: None)
    assert not list(tmp_path.iterdir())


def test_a_backup_that_fails_leaves_no_folder_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing, folder = Standing(), tmp_path / "backup"
    whole = standing.export

    def fails(buckets: Sequence[str]) -> Iterator[SavedBucket]:
        yield from whole(buckets[:2])
        raise MachineError("server-a-0 was killed")

    monkeypatch.setattr(standing, "export", fails)
    with pytest.raises(MachineError, match="was killed"):
        write_backup(cast(AdminClient, standing), folder, None, lambda doing, done: None)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(standing, "export", whole)
    write_backup(cast(AdminClient, standing), folder, None, lambda doing, done: None)
    assert verify(folder, progress=False).is_valid


@pytest.mark.parametrize("run", [None, RUN])
def test_a_run_of_which_not_all_buckets_are_found_is_not_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str | None
) -> None:
    monkeypatch.setattr("cotswold.api.servers.cluster_admin.run_meant", lambda of, run: run)
    whole = Standing().groups()
    some = dict(list(whole.items())[: 0 if run else 3])
    monkeypatch.setattr(Standing, "groups", lambda self: some)
    with pytest.raises(MachineError, match=r"\d of 4 buckets of run c83a0b833eac6e20 (is|are) missing"):
        write_backup(cast(AdminClient, Standing()), tmp_path / "backup", run, lambda doing, done: None)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_host_is_no_backup_and_is_said_to_be_a_hosts(backup: Path, tmp_path: Path) -> None:
    restore_backup(backup, tmp_path / "host", "127.0.0.1", "", None)
    (tmp_path / "host" / "events.jsonl").touch()
    with pytest.raises(UserError, match="is the folder of a host of parameter servers"):
        verify(tmp_path / "host", progress=False)
