"""Backups of a cluster of parameter servers: written while it serves, restored into a new cluster.

Knows: the contents of a backup folder. Does not know: requests to a cluster, the storage of buckets.

    FOLDER/backup.json     format, time, the runs with their descriptions, all groups
    FOLDER/buckets/        each bucket with its numbers, versions and sessions, as on a server's disk
    FOLDER/checkpoints/    RUN/0: the parameters of each run by the names of its tensors, as a checkpoint
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotswold.errors import CotswoldError, DiskFullError, FormatError, MachineError, StoreError, UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cotswold.replication.client.admin import AdminClient
    from cotswold.replication.metadata import MetadataLocation, MetadataStore
    from cotswold.replication.metadata.interface import Item
    from cotswold.replication.replica.saved_bucket import SavedBucket
    from cotswold.wire import Group

FORMAT = 1
FILE = "backup.json"
_BUCKETS, _CHECKPOINTS = "buckets", "checkpoints"
Progress = Callable[[str, int], None]


def write_backup(of: AdminClient, folder: Path, run: str | None, progress: Progress) -> str:
    """Write a backup of one run or all into a new folder; return a description and the next commands.

    Raises UserError if the folder exists or the run does not, and MachineError if a primary does not answer
    or buckets are missing. After an error the folder is deleted.
    """
    from cotswold.api.servers.cluster_admin import run_meant
    from cotswold.files import replace_file
    from cotswold.phrases import counted
    from cotswold.replication.disk.bucket_format import write_saved
    from cotswold.wire.names import is_run, run_of

    if folder.exists():
        raise UserError(f"{folder} already exists; give a new folder for the backup")
    groups = of.groups()
    runs = sorted({run_of(each) for each in groups}) if run is None else [run_meant(of, run)]
    if not runs:
        raise UserError("the cluster has no runs to back up")
    if strange := [each for each in runs if not is_run(each)]:
        raise UserError(
            f"the name {strange[0]!r:.80} of a run is not valid for a folder; select another with --run, or "
            "remove it: cotswold cluster remove"
        )
    descriptions = {each: of.description(each) for each in runs}
    vectors: dict[str, _Vectors] = {each: _Vectors(text) for each, text in descriptions.items()}
    for each, whole in vectors.items():
        if lacking := len(set(whole.buckets) - groups.keys()):
            raise MachineError(
                f"{lacking} of {counted(len(whole.buckets), 'bucket')} of run {each} "
                f"{'is' if lacking == 1 else 'are'} missing: the run is starting or ending; try again"
            )
    names = [each for whole in vectors.values() for each in whole.buckets]
    terms: dict[str, tuple[int, int]] = {}

    def kept() -> Iterator[SavedBucket]:
        for done, saved in enumerate(of.export(names), 1):
            vectors[run_of(saved.bucket)].add(saved)
            terms[saved.bucket] = saved.term, saved.incarnation
            progress("buckets written", done)
            yield saved

    folder.mkdir(parents=True)
    try:
        write_saved(folder / _BUCKETS, kept())
        for each, whole in vectors.items():
            whole.save(folder / _CHECKPOINTS / each)
        told = {
            "format": FORMAT,
            "time": round(time.time(), 3),
            "runs": descriptions,
            "buckets": {name: list(term) for name, term in terms.items()},
        }
        replace_file(folder / FILE, json.dumps(told).encode())
    except BaseException:  # so that the next attempt can use the same name
        shutil.rmtree(folder, ignore_errors=True)
        raise
    place = shlex.quote(str(folder))
    return (
        f"{folder} has {counted(len(names), 'bucket')} of {counted(len(runs), 'run')}, and the parameters of "
        f"each run in {_CHECKPOINTS}/RUN; cotswold verify {place} checks it, and cotswold "
        f"cluster restore {place} --folder NEW-FOLDER starts a new cluster from it"
    )


class _Vectors:
    """The complete vectors of one run."""

    def __init__(self, description: str) -> None:
        from cotswold.replication.run_description import Description

        self._description = Description.of(description)
        self._shards = {each.number: each for each in self._description.shards}
        self._vectors: dict[str, NDArray[np.generic]] = {}

    @property
    def buckets(self) -> tuple[str, ...]:
        """Names of all buckets of the run."""
        return self._description.buckets

    def add(self, saved: SavedBucket) -> None:
        """Add the contents of one bucket."""
        import numpy as np

        size = max(each.stop for each in self._shards.values())
        for (name, number), buffer in saved.numbers.items():
            whole = self._vectors.setdefault(name, np.zeros(size, self._description.dtype))
            shard = self._shards[number]
            whole[shard.start : shard.stop] = np.frombuffer(buffer, self._description.dtype)  # type: ignore[call-overload]  # a buffer

    def save(self, folder: Path) -> None:
        """Write the vectors as an ordinary checkpoint."""
        import torch

        from cotswold.batch.runtime.startup import POINT
        from cotswold.checkpoint import CheckpointManager
        from cotswold.shards.runtime.work import TensorSlot

        tensors: dict[str, torch.Tensor] = {}
        for vector, whole in self._vectors.items():
            start = 0
            for one in self._description.layout:
                slot = TensorSlot(*one)  # type: ignore[arg-type]  # as JSON says it
                count = slot.rows * slot.columns
                name = slot.name if vector == POINT else f"{vector}.{slot.name}"
                part = torch.from_numpy(whole[start : start + count])
                tensors[name] = part.view(slot.rows, slot.columns)
                start += count
        CheckpointManager(folder, identity=self._description.run).save(
            0, tensors, {"run": self._description.run}
        )


def restore_backup(
    backup: Path,
    folder: Path,
    at: str,
    name: str,
    place: MetadataLocation | None,
    controllers: str | None = None,
) -> str:
    """Restore a backup into the folder of the first host of a new cluster.

    Returns a description and the command that starts the host. Raises UserError if there is no backup or the
    folder contains a cluster, FormatError for another format, and StoreError for damage. After an error
    nothing remains.
    """
    from cotswold.files import replace_file
    from cotswold.phrases import counted
    from cotswold.replication.disk.bucket_format import write_saved
    from cotswold.replication.metadata import MetadataLocation
    from cotswold.replication.replica.saved_bucket import restored_on
    from cotswold.replication.runtime.host_settings import DISKS_FOLDER, METADATA_FILE, HostSettings
    from cotswold.replication.runtime.server_names import FILE as NAMES
    from cotswold.wire import Group

    told = _read(backup)
    settings = HostSettings(at=at, controllers=(at,), servers=1, folder=folder, name=name)
    disk, disks, names = f"{settings.prefix}-0", folder / DISKS_FOLDER, folder / NAMES
    own = folder / METADATA_FILE
    if own.exists() or disks.exists():
        raise UserError(f"{folder} contains a cluster; restore into a new folder")
    owner = restored_on(disk)
    groups = [Group(each, term, owner, incarnation=life) for each, (term, life) in told["buckets"].items()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with closing((place or MetadataLocation(sqlite=str(own.absolute()))).open()) as state:
            if state.read(""):
                raise UserError(
                    "the controllers' state already contains a cluster; give another etcd or prefix"
                )
            disks.mkdir()
            write_saved(disks / disk, _saved_in(backup / _BUCKETS, backup))
            replace_file(names, json.dumps({disk: disk}).encode())
            _put_state(state, told["runs"], groups)
    except BaseException:
        shutil.rmtree(disks, ignore_errors=True)
        for each in (names, *folder.glob(f"{METADATA_FILE}*")):  # including SQLite's extra files
            each.unlink(missing_ok=True)
        raise
    has = f"{folder} has {counted(len(groups), 'bucket')} of {counted(len(told['runs']), 'run')}"
    start = _start_command(folder, at, name, place, controllers)
    return f"{has}; now start this host before any other, with --token-file and --servers as well: {start}"


def _put_state(state: MetadataStore, runs: Mapping[str, str], groups: Sequence[Group]) -> None:
    """Write the groups and runs to the controllers' state, atomically."""
    from cotswold.replication.controller.bucket_map import items_of

    done: list[Sequence[Item]] = []
    try:
        for items in items_of(runs, groups):
            done.append(items)
            if not state.transact([(key, None) for key, _ in items], items):
                raise UserError(
                    "another process is writing to the controllers' state; stop the cluster first"
                )
    except BaseException:
        with suppress(CotswoldError):
            for put in done:
                state.transact(put, [(key, None) for key, _ in put])
        raise


def _start_command(
    folder: Path, at: str, name: str, place: MetadataLocation | None, controllers: str | None
) -> str:
    """Return the command that starts the host of a restored folder."""
    from cotswold.replication.metadata import MetadataLocation

    given: dict[str, object] = {"folder": folder, "listen": at, "name": name, "controllers": controllers}
    if place is not None:
        given |= {"etcd": ",".join(place.etcd), "etcd-ca": place.authority, "etcd-cert": place.certificate}
        given |= {
            "etcd-key": place.key,
            "etcd-prefix": place.prefix if place.prefix != MetadataLocation.prefix else "",
        }
    options = [part for option, value in given.items() if value for part in (f"--{option}", str(value))]
    return shlex.join(["cotswold", "cluster", "start", *options])


def verify_backup(backup: Path, tell: Callable[[int, int], None] = lambda done, of: None) -> list[str]:
    """Return a sentence for each fault of a backup; empty for an intact one.

    Reads every bucket and checkpoint and changes nothing. Raises DiskFullError if the disk has no room for a
    copy of the buckets' index.
    """
    from cotswold.checkpoint import CheckpointManager
    from cotswold.replication.disk.bucket_format import linked_copy
    from cotswold.run.verify import verify_checkpoint

    try:
        told = _read(backup)
    except CotswoldError as error:
        return [str(error)]
    findings, wanted, seen = [], dict(told["buckets"]), dict[str, list[int]]()
    try:
        with linked_copy(backup / _BUCKETS) as buckets:
            for saved in _saved_in(buckets, backup):
                seen[saved.bucket] = [saved.term, saved.incarnation]
                tell(len(seen), len(wanted))
    except DiskFullError:  # unrelated to the backup
        raise
    except (StoreError, FormatError) as error:
        findings.append(str(error))
    except (CotswoldError, OSError) as error:
        findings.append(f"{backup / _BUCKETS}: {error}")
    others = [name for name, term in wanted.items() if seen.get(name, term) != term]
    missing = [name for name in wanted if name not in seen]
    if missing or others:
        findings.append(f"{backup / _BUCKETS} lacks {', '.join([*missing, *others])}; take another backup")
    for run in told["runs"]:
        folder_ = backup / _CHECKPOINTS / run
        paths = CheckpointManager(folder_).paths()
        findings += [found for path in paths for found in verify_checkpoint(path, run)]
        findings += [] if paths else [f"{folder_} has no checkpoint; take another backup"]
    return findings


def _saved_in(buckets: Path, backup: Path) -> Iterator[SavedBucket]:
    """Yield the buckets of a backup or its copy as `read_saved` does; errors name the backup."""
    from cotswold.replication.disk.bucket_format import read_saved

    try:
        if not (buckets / "format.json").is_file():
            raise StoreError(f"{buckets} is damaged (it has no format.json)")
        yield from read_saved(buckets)
    except StoreError as error:
        cause = error.cause.replace(str(buckets), str(backup / _BUCKETS))
        # a store's own remedies need other servers, which a backup does not have
        raise StoreError(cause, remedy="take another backup") from error
    except FormatError as error:
        raise FormatError(str(error).replace(str(buckets), str(backup / _BUCKETS))) from error


def _read(backup: Path) -> Mapping[str, Any]:
    from cotswold.files import MalformedError, read_object
    from cotswold.files.untrusted_json import describe_format_error
    from cotswold.wire.names import is_run

    try:
        told = read_object(backup / FILE, bytes_max=1 << 30)
    except FileNotFoundError as error:
        raise UserError(f"{backup} is not a backup, or an interrupted one (no {FILE})") from error
    except MalformedError as error:
        raise FormatError(f"{backup / FILE} {error}; take another backup") from error
    if (found := told.get("format")) != FORMAT:
        raise FormatError(f"{backup} {describe_format_error(found, FORMAT)}")
    runs = told.get("runs")
    if not isinstance(runs, dict):
        raise FormatError(f"{backup / FILE} names no runs; take another backup")
    if strange := [each for each in runs if not is_run(each)]:
        raise FormatError(
            f"{backup / FILE} has an invalid name {strange[0]!r:.80} of a run; take another backup"
        )
    return told
