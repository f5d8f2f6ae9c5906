"""Preparation of a store from a source, in several processes, resumable after a kill at any time.

Knows: the sequence of steps, what may be overwritten. Does not know: decoding, zarr's codecs, transforms.

A source is permuted once and cut into shards. One process writes each shard, and a journal records it.
Before that, the transform is estimated from training shards: the first few for images, all for vectors.
Broken images leave gaps, which are filled with images from the end. The manifest is written last: without
it the store is unfinished.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.preprocessing import AnyPreparation
from cotswold.data.preprocessing.images import Preparation
from cotswold.data.preprocessing.target_scale import TargetScale
from cotswold.data.preprocessing.vectors import VectorPreparation
from cotswold.data.sources.base import Source
from cotswold.data.sources.checks import described, labels_of, wrap_source_errors
from cotswold.data.sources.sequences import lengths_of
from cotswold.data.sources.vectors import VectorSource
from cotswold.data.store import class_counts
from cotswold.data.store import layout as store_layout
from cotswold.data.store.image_shards import ImageWork
from cotswold.data.store.journal import Journal, sync
from cotswold.data.store.layout import Chunk, ShardSize
from cotswold.data.store.manifest import (
    FORMAT,
    MANIFEST,
    checksum,
    chunk_of,
    disk_full_named,
    read_manifest,
    write_json,
)
from cotswold.data.store.shard import (
    BrokenSamples,
    NothingReadableError,
    ShardWork,
    StoreShard,
    unreadable_shard_error,
)
from cotswold.data.store.splits import Request, Splits, assign_splits, rule
from cotswold.data.store.store_folder import differences, lock_store, resume_or_verify
from cotswold.data.store.vector_shards import VectorWork
from cotswold.data.store.worker_pool import WorkerPool
from cotswold.errors import UserError
from cotswold.files import expanded, real_folder
from cotswold.host import granted_cores
from cotswold.phrases import counted

Progress = Callable[[int, int], None]
"""Called with the number of samples done and the total."""

_IMAGES_PER_JOB = 64
_VECTORS_PER_JOB = 1 << 16
"""Minimum work of a process; for less, starting it costs more than it saves."""
_MAX_NAMED_BROKEN = 1000


@dataclass(frozen=True)
class Summary:
    """The result of `prepare`."""

    path: Path
    """Directory of the store."""
    identity: str
    """Hash of the store's samples and their preparation."""
    splits: dict[str, int]
    """Number of samples in each split."""
    classes: tuple[str, ...]
    """Names of the classes in the order of their numbers; empty without labels."""
    broken: int
    """Number of images that could not be read."""
    broken_files: tuple[str, ...]
    """The first thousand of them, each with the reason."""
    reused: int
    """Number of samples that an interrupted run had already prepared."""
    seconds: float
    """Duration of the preparation in seconds."""
    was_complete: bool
    """True if the store was already finished and nothing was done."""
    notes: tuple[str, ...]
    """Sentences on the splits and other decisions about all samples."""


def prepare(
    source: Source | VectorSource,
    out: str | Path,
    preparation: AnyPreparation,
    *,
    splits: Splits = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    seed: int = 0,
    limit: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the store ``out``, resuming an interrupted run; do nothing if the store is finished.

    Args:
        source: Samples from `open_source`, `open_vectors` or `open_samples`.
        out: Path of the store.
        preparation: Settings for this kind of data, a `Preparation` or `VectorPreparation`.
        splits: Rule for the splits, as `splits` in `[data]` of a recipe.
        validation: Fraction of samples for validation.
        test: Fraction of samples for test.
        seed: Seed of the permutation.
        limit: Maximum number of samples. [all]
        jobs: Number of processes. [all cores]
        progress: Called with the number of samples done and the total.

    Returns:
        The splits, classes, broken images and notes of the store.

    Raises:
        SourceError: if no image is readable, a value is infinite or NaN, or a label is not a class.
        UserError: if ``out`` contains something else, or the preparation is for another kind of data.
        BusyError: if another process is writing ``out``.
        DiskFullError: if the disk is full; free some space and run again.
    """
    begun = time.monotonic()
    _check_kind(source, preparation)
    decided = rule(source, splits)
    request = Request(
        source=source.identity,
        labelled=bool(source.classes or source.targets),
        preparation=preparation,
        splits=decided.splits,
        validation=validation,
        test=test,
        seed=seed,
        limit=limit,
        test_by_name=decided.test_by_name,
        validation_by_name=decided.validation_by_name,
    )
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}")
    path = expanded(out)
    settled = () if (path / MANIFEST).exists() else source.settle()
    notes = tuple(filter(None, (decided.explanation, *settled)))
    with lock_store(path):
        if (path / MANIFEST).exists():
            return _existing_summary(path, request, begun)
        journal = Journal(path)
        plan = assign_splits(source, request)
        labels_of(source, np.concatenate(list(plan.values())))  # before anything is written
        shards = _shards(plan, preparation)
        resume_or_verify(path, journal, request, shards)
        samples = sum(len(shard.samples) for shard in shards)
        found = sum(len(shard.samples) for shard in shards if shard.key in journal.finished_chunks)
        least = _IMAGES_PER_JOB if preparation.kind == "images" else _VECTORS_PER_JOB
        jobs = min(jobs or granted_cores(environ={}), -(-(samples - found) // least) or 1)
        work = _work(source, path, preparation)
        with wrap_source_errors(
            source,
            f"{described(source)} cannot be sent to the processes that prepare its samples",
            "remove open files, locks and lambdas from it, or use jobs = 1",
        ):
            workers = WorkerPool(work, jobs)
        try:
            with workers as pool:
                _make_arrays(path, plan, preparation)
                _write_all(pool, work, journal, shards, progress)
        except NothingReadableError:
            shutil.rmtree(path / store_layout.GROUP)
            journal.end()  # last, so that a run killed before this can resume
            path.rmdir()
            raise
        manifest = _finished(path, source, request, plan, journal, notes)
    return _summary(path, manifest, found, begun)


def _existing_summary(path: Path, request: Request, begun: float) -> Summary:
    manifest = read_manifest(path)
    Journal(path).end()  # a kill may have left it after the manifest was written
    if manifest["request"] != request.state():
        found = differences(manifest["request"], request.state())
        raise UserError(
            f"{path} already contains a store that differs in {found}; give another directory or delete it"
        )
    found = sum(part["samples"] for part in manifest["splits"].values())
    return replace(_summary(path, manifest, found, begun), was_complete=True)


def _check_kind(source: Source | VectorSource, preparation: AnyPreparation) -> None:
    """Raise UserError if the preparation is for other data than the source's."""
    if source.kind != preparation.kind:
        raise UserError(f"the preparation is for {preparation.kind}, but the source contains {source.kind}")
    if not isinstance(source, VectorSource) or not isinstance(preparation, VectorPreparation):
        return
    if source.features != preparation.features:
        raise UserError(
            f"the preparation is for {counted(preparation.features, 'feature')}, but the source has "
            f"{source.features:,}"
        )


def _work(source: Source | VectorSource, path: Path, preparation: AnyPreparation) -> ShardWork[Any, Any]:
    """Return the work on shards for this kind of data."""
    if isinstance(source, VectorSource):
        assert isinstance(preparation, VectorPreparation), "kinds agree"
        return VectorWork(source, path, preparation)
    assert isinstance(preparation, Preparation), "kinds agree"
    return ImageWork(source, path, preparation)


def _shard_size(preparation: AnyPreparation) -> ShardSize:
    if isinstance(preparation, VectorPreparation):
        return store_layout.shard_vectors(preparation.shape, preparation.dtype)
    images = store_layout.shard_images(preparation.shape, preparation.dtype)
    return ShardSize(images, images)


def _shards(plan: dict[str, NDArray[np.int64]], preparation: AnyPreparation) -> list[StoreShard]:
    """Cut every split into shards."""
    size = _shard_size(preparation)
    return [
        StoreShard(split, number, start, size, order[start : start + size.samples])
        for split, order in plan.items()
        for number, start in enumerate(range(0, len(order), size.samples))
    ]


def _make_arrays(path: Path, plan: dict[str, NDArray[np.int64]], preparation: AnyPreparation) -> None:
    """Create the zarr metadata of every split.

    Importing zarr takes as long as starting the processes.
    """
    from cotswold.data.store import zarr_group

    size = _shard_size(preparation)
    with disk_full_named(path):
        real_folder(path / store_layout.GROUP)
        zarr_group.create_group(path)
        for split, order in plan.items():
            real_folder(path / store_layout.folder(split))
            zarr_group.create(
                path / store_layout.folder(split), len(order), preparation.row, preparation.dtype, size
            )


def _write_all(
    pool: WorkerPool[Any, Any],
    work: ShardWork[Any, Any],
    journal: Journal,
    shards: list[StoreShard],
    progress: Progress | None,
) -> None:
    """Estimate the transform and write every missing shard."""
    transform, looked = journal.transform(), dict[str, BrokenSamples]()
    if transform is None:
        transform, looked = work.estimated([shard for shard in shards if shard.split == "train"], pool)
        journal.keep_transform(transform)
    left = [shard for shard in shards if shard.key not in journal.finished_chunks]
    total = sum(len(shard.samples) for shard in shards)
    done = total - sum(len(shard.samples) for shard in left)
    for shard, (chunk, broken) in pool.write(left, transform, looked):
        journal.add(shard.key, chunk, broken)
        with disk_full_named(journal.store):
            sync(journal.store / shard.key)  # while the processes work on the next shards
        done += len(shard.samples)
        if progress is not None:
            progress(done, total)
    train = [shard for shard in shards if shard.split == "train"]
    if all(len(journal.finished_chunks[shard.key][1]) == len(shard.samples) for shard in train):
        raise unreadable_shard_error(journal.finished_chunks[train[0].key][1])


def _finished(
    path: Path,
    source: Source | VectorSource,
    request: Request,
    plan: dict[str, NDArray[np.int64]],
    journal: Journal,
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Fill the gaps of broken images, write labels and the manifest."""
    from cotswold.data.store import zarr_group

    shards = _shards(plan, request.preparation)
    chunks = {key: chunk for key, (chunk, _) in journal.finished_chunks.items()}
    reasons = [why for shard in shards for why in journal.finished_chunks[shard.key][1].values()]
    splits: dict[str, Any] = {}
    labels: dict[str, NDArray[Any]] = {}
    with disk_full_named(path):
        for split, order in plan.items():
            gaps = [
                s.start + at for s in shards if s.split == split for at in journal.finished_chunks[s.key][1]
            ]
            order = _closed(path, split, order, sorted(gaps), chunks)
            if not len(order):
                shutil.rmtree(path / store_layout.folder(split))
                continue
            folder, sequences = path / store_layout.folder(split), 0
            labels[split] = source.labels(order)
            zarr_group.write_labels(folder, labels[split])
            if source.lengths is not None:
                lengths = lengths_of(order, source.lengths)
                sequences = len(lengths)
                zarr_group.write_lengths(folder, lengths)
            for key in [
                *store_layout.label_keys(split, len(order), source.targets),
                *store_layout.length_keys(split, sequences),
                *store_layout.descriptions(split, sequences),
            ]:
                chunks[key] = chunk_of(path / key)
            splits[split] = {
                "samples": len(order),
                "shard": _shard_size(request.preparation).samples,
                **({"sequences": sequences} if sequences else {}),
            }
        chunks[store_layout.ROOT] = chunk_of(path / store_layout.ROOT)
        for key in chunks:
            sync(path / key)
    transform = journal.transform()
    assert transform is not None
    class_notes = class_counts.class_notes(source.classes, labels) if source.classes else []
    scale = _target_scale(source, request.preparation, labels)
    manifest = {
        "format": FORMAT,
        "request": request.state(),
        "transform": transform.state(),
        "classes": list(source.classes),
        **({"targets": source.targets} if source.targets else {}),
        "splits": splits,
        **({} if scale is None else {"target_scale": scale.state()}),
        "notes": [*notes, *class_notes[:1], *([] if scale is None else scale.notes), *transform.notes],
        "warnings": class_notes[1:],
        "broken": {"count": len(reasons), "files": reasons[:_MAX_NAMED_BROKEN]},
        "chunks": {key: list(chunk) for key, chunk in sorted(chunks.items())},
    }
    manifest["checksum"] = checksum(manifest)
    write_json(path / MANIFEST, manifest)
    journal.end()
    return manifest


def _target_scale(
    source: Source | VectorSource, preparation: AnyPreparation, labels: dict[str, NDArray[Any]]
) -> TargetScale | None:
    """Return the standardisation of regression targets; None for classes or unstandardised samples."""
    if not source.targets or (isinstance(preparation, VectorPreparation) and not preparation.standardise):
        return None
    return TargetScale.of(labels["train"])


def _closed(
    path: Path, split: str, order: NDArray[np.int64], gaps: list[int], chunks: dict[str, Chunk]
) -> NDArray[np.int64]:
    """Move images from the end into the gaps, truncate the arrays and return the new order.

    After a kill in this function the files disagree with the journal, and the next run writes them again.
    """
    if not gaps:
        return order
    from cotswold.data.store import zarr_group

    array = zarr_group.open_array(path / store_layout.folder(split) / store_layout.SAMPLES, "r+")
    assert array.shards is not None
    size = array.shards[0]
    count, broken = len(order) - len(gaps), set(gaps)
    movers = (row for row in range(count, len(order)) if row not in broken)
    moved = order.copy()
    for gap in (gap for gap in gaps if gap < count):
        mover = next(movers)
        array[gap] = array[mover]
        moved[gap] = order[mover]
    array.resize((count, *array.shape[1:]))
    for key in store_layout.shard_keys(split, len(order), size):
        if (path / key).exists():
            chunks[key] = chunk_of(path / key)
        else:
            del chunks[key]
    return moved[:count]


def _summary(path: Path, manifest: dict[str, Any], found: int, begun: float) -> Summary:
    return Summary(
        path=path,
        identity=manifest["checksum"],
        splits={name: part["samples"] for name, part in manifest["splits"].items()},
        classes=tuple(manifest["classes"]),
        broken=manifest["broken"]["count"],
        broken_files=tuple(manifest["broken"]["files"]),
        reused=found,
        seconds=time.monotonic() - begun,
        was_complete=False,
        notes=(*manifest["notes"], *manifest["warnings"]),
    )
