"""Making of a set from installed typefaces, on all cores, resumable after a kill at any time.

Knows: the sequence of steps, what may be overwritten, notes for users. Does not know: the making of a scan,
or of samples from it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import __version__ as pillow_version
from PIL import features

from cotswold.data.datasets.japanese_ocr import MANIFEST, families, frequencies, sheets, typefaces
from cotswold.data.datasets.japanese_ocr.characters import classes
from cotswold.data.datasets.japanese_ocr.families import Family
from cotswold.data.datasets.japanese_ocr.japanese_set import FORMAT, JapaneseSet, array_file
from cotswold.data.datasets.japanese_ocr.plan import PARTS, DatasetPlan, Request, make_plan
from cotswold.data.datasets.japanese_ocr.printing import SIDE, Bits, Degradation, print_scan
from cotswold.data.datasets.japanese_ocr.typefaces import Design, Face
from cotswold.data.store.manifest import chunk_of, disk_full_named
from cotswold.data.store.store_folder import lock_store
from cotswold.data.store.worker_pool import Workers
from cotswold.errors import SourceError, UserError
from cotswold.files import expanded, real_folder, replace_file, writing_whole
from cotswold.files.checksum import seal
from cotswold.host import granted_cores

Progress = Callable[[int, int], None]
"""Called with the number of scans done and the total."""

FAMILIES_WANTED = 8
_UNFINISHED = "unfinished"
_SCANS_PER_FILE = 2048
"""Scans in one file of an unfinished set: about a second's work."""


def make(
    out: str | Path,
    request: Request | None = None,
    *,
    fonts: Sequence[Path] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> JapaneseSet:
    """Write the set ``out``, resuming an interrupted run; do nothing if the set is finished.

    Args:
        out: Folder of the set.
        request: Parameters of the set. [defaults of `Request`]
        fonts: Folders with typefaces, in addition to the system's.
        jobs: Number of processes. [all cores]
        progress: Called with the number of scans done and the total.

    Returns:
        The finished set.

    Raises:
        SourceError: if fewer than two families of typefaces are installed.
        UserError: if ``out`` contains something else.
        BusyError: if another process is writing ``out``.
        DiskFullError: if the disk is full; free some space and run again.
    """
    wanted, path = request or Request(), expanded(out)
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs must be at least 1, got {jobs}")
    if not (path / MANIFEST).exists():
        _refuse_other(path)
        with lock_store(path):
            if not (path / MANIFEST).exists():
                _make(path, wanted, fonts, jobs or granted_cores(environ={}), progress)
    return _open_if_equal(path, wanted)


def _make(path: Path, wanted: Request, fonts: Sequence[Path], jobs: int, progress: Progress | None) -> None:
    """Write a set into a locked folder."""
    faces, missing = typefaces.installed(fonts)
    _require_two(len({each.design for each in faces}), missing)
    found = families.grouped(tuple(faces))
    _require_two(len(found), missing)
    held = _held_out_families(wanted, found)
    ranking = frequencies.ranking(wanted.seed)
    plan = make_plan(wanted, found, held, ranking)
    printer = Printer(tuple(face for each in found for face in each.faces), wanted.seed)
    described = [_described(each, held) for each in found]
    tasks = _tasks(path, plan, _digest([wanted.state(), described, ranking.order, _software()]))
    _print_all(printer, tasks, jobs, progress)
    _join(path, plan, tasks)
    files = [array_file(part, array) for part in PARTS for array in _ARRAYS]
    manifest = {
        "format": FORMAT,
        "request": wanted.state(),
        "families": described,
        "missing": [{"design": each.name, "package": each.package} for each in missing],
        "software": _software(),
        "notes": _notes(found, held, missing, plan, ranking),
        "arrays": {name: list(chunk_of(path / name)) for name in files},
    }
    with disk_full_named(path):
        sheets.write(path, manifest)
        replace_file(path / MANIFEST, json.dumps({**manifest, "checksum": seal(manifest)}).encode())
        shutil.rmtree(path / _UNFINISHED)


_ARRAYS = ("scans", "labels", "faces")


@dataclass(frozen=True)
class Printer:
    """Prints samples; cheap to pickle."""

    faces: tuple[Face, ...]
    seed: int

    def scans(self, task: Task) -> Bits:
        """Return the scans (sample, 64) of a task; each depends only on the seed, its part and its number."""
        found = np.zeros((len(task.labels), SIDE), np.uint64)
        for at, (label, face) in enumerate(zip(task.labels.tolist(), task.faces.tolist(), strict=True)):
            number = task.start + at
            random = np.random.default_rng([self.seed, 1000 + task.part, number])
            kind = task.kinds[number % len(task.kinds)]
            found[at] = print_scan(self.faces[face], classes()[label], kind, random)
        return found


@dataclass(frozen=True)
class Task:
    """Samples of a part from ``start``, and the file for their scans."""

    file: Path
    part: int
    start: int
    labels: np.typing.NDArray[np.uint16]
    faces: np.typing.NDArray[np.uint16]
    kinds: tuple[Degradation, ...]


def _tasks(path: Path, plan: DatasetPlan, origin: str) -> list[Task]:
    """Return all tasks; file names contain a digest, so that files of another request are not reused."""
    return [
        Task(
            path / _UNFINISHED / f"{origin}-{part.part}-{start}.npy",
            number,
            start,
            part.labels[start : start + _SCANS_PER_FILE],
            part.faces[start : start + _SCANS_PER_FILE],
            part.kinds,
        )
        for number, part in enumerate(plan.parts)
        for start in range(0, len(part.labels), _SCANS_PER_FILE)
    ]


def _print_all(printer: Printer, tasks: list[Task], jobs: int, progress: Progress | None) -> None:
    total = sum(len(task.labels) for task in tasks)
    left = [task for task in tasks if not task.file.exists()]
    done = total - sum(len(task.labels) for task in left)
    with disk_full_named(tasks[0].file):
        real_folder(tasks[0].file.parent)
    with Workers(printer, min(jobs, len(left) or 1)) as workers:
        for task, _ in workers.map(_print, left):
            done += len(task.labels)
            if progress is not None:
                progress(done, total)


def _print(printer: Printer, task: Task) -> None:
    save(task.file, printer.scans(task))


def save(file: Path, array: np.typing.NDArray[Any]) -> None:
    """Write an array as `numpy.save` does, atomically.

    Raises DiskFullError. NumPy itself reports a short write without the system's reason.
    """
    with disk_full_named(file), writing_whole(file) as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(np.ascontiguousarray(array).data)


def _join(path: Path, plan: DatasetPlan, tasks: list[Task]) -> None:
    """Write one file for each array of each part."""
    for number, part in enumerate(plan.parts):
        scans = np.concatenate([np.load(task.file) for task in tasks if task.part == number])
        for name, array in zip(_ARRAYS, (scans, part.labels, part.faces), strict=True):
            save(path / array_file(part.part, name), array)


def _open_if_equal(path: Path, wanted: Request) -> JapaneseSet:
    there = JapaneseSet(path)
    if there.request != wanted:
        new, old = wanted.state(), there.request.state()
        differs = ", ".join(f"{name} {old[name]!r}" for name in new if new[name] != old[name])
        raise UserError(f"{path} already contains a set with {differs}; give another directory or delete it")
    return there


def _refuse_other(path: Path) -> None:
    """Raise UserError for a folder that contains anything except an unfinished set."""
    ours = {_UNFINISHED, sheets.FOLDER, *(array_file(part, array) for part in PARTS for array in _ARRAYS)}
    there = path.iterdir() if path.is_dir() else ()
    strange = sorted(each.name for each in there if not any(each.name.startswith(o) for o in ours))
    if strange:
        raise UserError(f"{path} contains something else ({strange[0]}); give a new or empty directory")


def _require_two(count: int, missing: Sequence[Design]) -> None:
    if count < 2:
        raise SourceError(
            f"{count} families of Japanese typefaces are installed, but one must be held out: install at "
            f"least two, preferably all: {install_words(missing)}"
        )


def install_words(missing: Sequence[Design]) -> str:
    """Return the command that installs the missing typefaces."""
    return f"apt install {' '.join(dict.fromkeys(each.package for each in missing))}"


def _held_out_families(wanted: Request, found: Sequence[Family]) -> list[str]:
    held = list(wanted.held_families) or families.held_out_families(found)
    names = [each.name for each in found]
    for name in held:
        if name not in names:
            raise UserError(f"{name!r} is not among the installed families: {', '.join(names)}")
    if len(set(held)) == len(names):
        raise UserError("all families are held out, so none remains for training; hold out fewer")
    return held


def _described(family: Family, held: Sequence[str]) -> dict[str, object]:
    return {
        "name": family.name,
        "held_out": family.name in held,
        "lacks": "".join(family.missing_classes),
        "faces": [
            {"design": each.design, "file": each.file.name, "digest": _digest_file(each.file)}
            for each in family.faces
        ],
    }


def _notes(
    found: Sequence[Family],
    held: Sequence[str],
    missing: Sequence[Design],
    plan: DatasetPlan,
    ranking: frequencies.Ranking,
) -> list[str]:
    """Return notes for users, one sentence each."""
    notes = [f"{len(found)} families by their outlines, held out from training: {', '.join(held)}"]
    if len(found) < FAMILIES_WANTED:
        notes.append(f"fewer than {FAMILIES_WANTED} families; get more with {install_words(missing)}")
    elif missing:
        named = ", ".join(f"{each.name} ({each.package})" for each in missing)
        notes.append(f"typefaces not installed: {named}")
    notes += [
        f"{family.name} lacks characters ({len(family.missing_classes)}): "
        f"{''.join(family.missing_classes[:20])}"
        for family in found
        if family.missing_classes
    ]
    for what, lacking in (("trained on", plan.untrained), ("held out", plan.untested_classes)):
        if lacking:
            notes.append(
                f"{len(lacking)} characters are in no family {what}, so they are missing there: "
                f"{''.join(lacking[:40])}"
            )
    return [*notes, f"characters are ranked by {ranking.origin}"]


def _software() -> dict[str, str]:
    """Return the versions that, with the font file, determine the pixels of a glyph."""
    return {"pillow": pillow_version, "freetype": str(features.version("freetype2"))}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _digest_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
