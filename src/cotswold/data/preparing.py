"""From a source to a store, in many processes, resumable after a kill at any moment.

Knows: the order of things, what may be overwritten. Does not know: decoding, zarr's codecs, whitening.

A source is permuted once and cut into shards, each written by one process and then entered in a journal. The
first shards of the training pictures are the sample from which whitening is estimated. Broken pictures leave
gaps, which pictures from the end fill. The manifest comes last: without it there is no store.
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

from cotswold.data import layout
from cotswold.data.claiming import begin, claimed, differences
from cotswold.data.crew import Crew
from cotswold.data.journal import Journal, sync
from cotswold.data.layout import Chunk
from cotswold.data.manifest import (
    FORMAT,
    MANIFEST,
    checksum,
    chunk_of,
    disk_full_named,
    read_manifest,
    write_json,
)
from cotswold.data.picture import Pixels
from cotswold.data.plan import Request, Splits, assigned, rule
from cotswold.data.preparation import Preparation, Transform, estimate, plain
from cotswold.data.shard import Broken, Shard, kept_pixels
from cotswold.data.source import Source
from cotswold.data.whitening import Float32
from cotswold.errors import SourceError, UserError
from cotswold.files import real_folder
from cotswold.host import granted_cores

Progress = Callable[[int, int], None]
"""Called with the pictures done and the pictures in all."""

_SAMPLE_PICTURES = 5000
"""Pictures that whitening is estimated from, at most: with 1,500 of Caltech-101 the colours of held-out
pictures still correlate by 0.068, with 4,000 by 0.050, with 5,000 by 0.046."""
_SAMPLE_BYTES = 1 << 30
"""Their decoded pixels wait on disk until they are written; that takes no more than this."""
_PICTURES_PER_JOB = 64
"""Below this, another process costs more than it does."""
_BROKEN_NAMED = 1000


@dataclass(frozen=True)
class Summary:
    """What `prepare` did."""

    path: Path
    identity: str
    splits: dict[str, int]
    """Pictures in each split."""
    classes: tuple[str, ...]
    broken: int
    """Pictures that could not be read."""
    broken_files: tuple[str, ...]
    """The first thousand of them, each with the reason."""
    found: int
    """Pictures that an earlier, interrupted run had already prepared."""
    seconds: float
    notes: tuple[str, ...]
    """How splits came about, and whatever else was decided for all pictures; sentences."""


def prepare(
    source: Source,
    out: str | Path,
    preparation: Preparation,
    *,
    splits: Splits = "auto",
    validation: float = 0.05,
    test: float = 0.0,
    seed: int = 0,
    limit: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the store ``out``; go on where an interrupted run stopped; do nothing if it is there already.

    ``splits``, ``validation``, ``test``, ``limit`` as in `[data]` of a recipe; ``jobs`` processes, all cores
    by default. Raises SourceError (no readable picture), UserError (``out`` holds something else), BusyError
    (another process writes it), DiskFullError (free some room and run again).
    """
    begun = time.monotonic()
    decided = rule(source, splits)
    request = Request(
        source=source.identity,
        labelled=bool(source.classes),
        preparation=preparation,
        splits=decided.splits,
        validation=validation,
        test=test,
        seed=seed,
        limit=limit,
        test_by_name=decided.test_by_name,
    )
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs = {jobs} would do nothing; give 1 or more")
    path = Path(out).expanduser()
    settled = () if (path / MANIFEST).exists() else source.settle()
    notes = tuple(filter(None, (decided.why, *settled)))
    with claimed(path):
        if (path / MANIFEST).exists():
            return _there_already(path, request, begun)
        journal = Journal(path)
        plan = assigned(source, request)
        shards = _shards(plan, preparation)
        begin(path, journal, request, shards)
        pictures = sum(len(shard.pictures) for shard in shards)
        found = sum(len(shard.pictures) for shard in shards if shard.key in journal.done)
        jobs = min(jobs or granted_cores(environ={}), -(-(pictures - found) // _PICTURES_PER_JOB) or 1)
        try:
            with Crew(source, path, preparation, jobs) as crew:
                _make_arrays(path, plan, preparation)
                _write_all(crew, source, journal, shards, preparation, progress)
        except _NothingReadableError:
            shutil.rmtree(path / layout.GROUP)
            journal.end()  # last: what a kill leaves here can be gone on with
            path.rmdir()
            raise
        manifest = _finished(path, source, request, plan, shards, journal, notes)
    return _summary(path, manifest, found, begun)


def _there_already(path: Path, request: Request, begun: float) -> Summary:
    manifest = read_manifest(path)
    Journal(path).end()  # a kill may have come between the manifest and this
    if manifest["request"] != request.state():
        found = differences(manifest["request"], request.state())
        raise UserError(
            f"{path} already holds a store that differs in {found}; give another directory or delete it"
        )
    return _summary(path, manifest, sum(part["pictures"] for part in manifest["splits"].values()), begun)


def _shards(plan: dict[str, NDArray[np.int64]], preparation: Preparation) -> list[Shard]:
    """Every split, cut into shards."""
    size = layout.shard_pictures(preparation.shape, preparation.dtype)
    return [
        Shard(split, number, start, size, tuple(order[start : start + size].tolist()))
        for split, order in plan.items()
        for number, start in enumerate(range(0, len(order), size))
    ]


def _make_arrays(path: Path, plan: dict[str, NDArray[np.int64]], preparation: Preparation) -> None:
    """Have zarr describe every split. Importing zarr takes as long as the processes take to start."""
    from cotswold.data import group

    size = layout.shard_pictures(preparation.shape, preparation.dtype)
    with disk_full_named(path):
        real_folder(path / layout.GROUP)
        group.begin(path)
        for split, order in plan.items():
            real_folder(path / layout.folder(split))
            group.create(path / layout.folder(split), len(order), preparation.shape, preparation.dtype, size)


def _write_all(
    crew: Crew,
    source: Source,
    journal: Journal,
    shards: list[Shard],
    preparation: Preparation,
    progress: Progress | None,
) -> None:
    """Estimate the transform and write every shard that is not there yet."""
    transform, looked = journal.transform(), dict[str, Broken]()
    if transform is None:
        transform, looked = _estimated(crew, journal.store, shards, preparation)
        transform = replace(transform, ranges=source.ranges)
        journal.keep_transform(transform)
    left = [shard for shard in shards if shard.key not in journal.done]
    total = sum(len(shard.pictures) for shard in shards)
    done = total - sum(len(shard.pictures) for shard in left)
    for shard, (chunk, broken) in crew.write(left, transform, looked):
        journal.add(shard.key, chunk, broken)
        done += len(shard.pictures)
        if progress is not None:
            progress(done, total)
    train = [shard for shard in shards if shard.split == "train"]
    if all(len(journal.done[shard.key][1]) == len(shard.pictures) for shard in train):
        raise _nothing_readable(journal.done[train[0].key][1])


def _estimated(
    crew: Crew, path: Path, shards: list[Shard], preparation: Preparation
) -> tuple[Transform, dict[str, Broken]]:
    """The transform, and what is broken in the shards that it was estimated from."""
    if not preparation.needs_sample:
        return plain(preparation), {}
    enough = max(1, min(_SAMPLE_PICTURES, _SAMPLE_BYTES // preparation.shape.size))
    looked: dict[str, Broken] = {}
    sample: list[Float32] = []
    some: Pixels | None = None
    for shard, (spectra, broken) in crew.look(shard for shard in shards if shard.split == "train"):
        looked[shard.key] = broken
        sample.append(spectra)
        if some is None and len(spectra):
            some = np.delete(kept_pixels(shard, path, preparation), list(broken), axis=0)
        if sum(map(len, sample)) >= enough:
            break
    if some is None:
        raise _nothing_readable(next(iter(looked.values())))
    return estimate(preparation, np.concatenate(sample), some), looked


class _NothingReadableError(SourceError):
    """Every picture for training is broken, so that nothing is lost with the unfinished store."""


def _nothing_readable(broken: Broken) -> SourceError:
    first = next(iter(broken.values()))
    return _NothingReadableError(
        f"not one picture for training can be read (the first: {first}); give readable ones"
    )


def _finished(
    path: Path,
    source: Source,
    request: Request,
    plan: dict[str, NDArray[np.int64]],
    shards: list[Shard],
    journal: Journal,
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Close the gaps that broken pictures left, write labels and the manifest."""
    from cotswold.data import group

    chunks = {key: chunk for key, (chunk, _) in journal.done.items()}
    reasons = [why for shard in shards for why in journal.done[shard.key][1].values()]
    splits: dict[str, Any] = {}
    with disk_full_named(path):
        for split, order in plan.items():
            gaps = [s.start + at for s in shards if s.split == split for at in journal.done[s.key][1]]
            order = _closed(path, split, order, sorted(gaps), chunks)
            if not len(order):
                shutil.rmtree(path / layout.folder(split))
                continue
            group.write_labels(
                path / layout.folder(split), np.array([source.label(int(i)) for i in order], np.int64)
            )
            for key in [*layout.label_keys(split, len(order)), *layout.descriptions(split)]:
                chunks[key] = chunk_of(path / key)
            splits[split] = {
                "pictures": len(order),
                "shard": layout.shard_pictures(request.preparation.shape, request.preparation.dtype),
            }
        chunks[layout.ROOT] = chunk_of(path / layout.ROOT)
        for key in chunks:
            sync(path / key)
    transform = journal.transform()
    assert transform is not None
    manifest = {
        "format": FORMAT,
        "request": request.state(),
        "transform": transform.state(),
        "classes": list(source.classes),
        "splits": splits,
        "notes": list(notes),
        "broken": {"count": len(reasons), "files": reasons[:_BROKEN_NAMED]},
        "chunks": {key: list(chunk) for key, chunk in sorted(chunks.items())},
    }
    manifest["checksum"] = checksum(manifest)
    write_json(path / MANIFEST, manifest)
    journal.end()
    return manifest


def _closed(
    path: Path, split: str, order: NDArray[np.int64], gaps: list[int], chunks: dict[str, Chunk]
) -> NDArray[np.int64]:
    """Move pictures from the end into the gaps and cut the arrays there; the new order of pictures.

    Whatever a kill leaves of this no longer agrees with the journal, so that the next run writes it anew.
    """
    if not gaps:
        return order
    from cotswold.data import group

    array = group.opened(path / layout.folder(split) / layout.PICTURES, "r+")
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
    for key in layout.shard_keys(split, len(order), size):
        if (path / key).exists():
            chunks[key] = chunk_of(path / key)
        else:
            del chunks[key]
    return moved[:count]


def _summary(path: Path, manifest: dict[str, Any], found: int, begun: float) -> Summary:
    return Summary(
        path=path,
        identity=manifest["checksum"],
        splits={name: part["pictures"] for name, part in manifest["splits"].items()},
        classes=tuple(manifest["classes"]),
        broken=manifest["broken"]["count"],
        broken_files=tuple(manifest["broken"]["files"]),
        found=found,
        seconds=time.monotonic() - begun,
        notes=tuple(manifest.get("notes", ())),
    )
