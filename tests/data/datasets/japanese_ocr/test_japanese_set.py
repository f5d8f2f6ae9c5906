from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from tests.data.datasets.japanese_ocr.conftest import SMALL
from torch.utils.data import DataLoader

from cotswold.data import Store, VectorPreparation, open_samples, open_source, open_vectors, prepare
from cotswold.data.datasets.japanese_ocr import (
    GeneratedDataset,
    JapaneseSet,
    Request,
    classes,
    make,
    printing,
    typefaces,
)
from cotswold.data.datasets.japanese_ocr import generate as making
from cotswold.data.datasets.japanese_ocr.generate import Printer, Task
from cotswold.data.datasets.japanese_ocr.typefaces import Design, Face
from cotswold.data.store.store_folder import lock_store
from cotswold.errors import BusyError, DiskFullError, SourceError, UserError

pytestmark = pytest.mark.usefixtures("few_designs")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_families_are_told_apart_by_outlines_and_every_fourth_or_the_last_is_held_out(
    made: JapaneseSet,
) -> None:
    designs = [sorted({face["design"] for face in family["faces"]}) for family in made.families]
    assert designs == [["IPA Gothic", "Takao Gothic"], ["Noto Serif CJK"], ["IPA Mincho"]]
    assert [family["held_out"] for family in made.families] == [False, False, True]


def test_no_training_scan_is_of_a_family_that_is_held_out(made: JapaneseSet) -> None:
    held = [family["held_out"] for family in made.families for _ in family["faces"]]
    for part in ("originals", "validation", "degradations"):
        assert not np.array(held)[made.faces(part)].any()
    assert np.array(held)[made.faces("families")].all()


def test_each_family_has_as_many_scans_whatever_its_faces(made: JapaneseSet) -> None:
    faces = np.array([number for number, family in enumerate(made.families) for _ in family["faces"]])
    counts = np.bincount(faces[made.faces("originals")])
    assert len(counts) == 2 and abs(counts[0] / counts.sum() - 0.5) < 0.05


def test_the_set_is_what_was_asked_for(made: JapaneseSet) -> None:
    assert made.originals == 3500 and made.frequencies.sum() == 3500 and made.frequencies.min() == 1
    assert made.request == SMALL and made.classes == classes()
    for part in ("validation", "degradations", "families"):
        held, labels = made.held_out(part)
        assert held.shape == (60, 400) and labels.shape == (60,) and held.dtype == np.uint8
    assert all((made.path / "sheets" / f"{name}.png").stat().st_size for name in ("faces", "transformed"))


def test_no_scan_is_empty_and_held_out_scans_are_no_training_scans(made: JapaneseSet) -> None:
    originals = {bytes(scan) for scan in made.scans("originals")}
    for part in ("validation", "degradations", "families"):
        scans = made.scans(part)
        assert scans.any(1).all()
        assert sum(bytes(scan) in originals for scan in scans) == 0


def test_scans_of_different_parts_differ_though_all_else_is_the_same() -> None:
    face, one = typefaces.installed()[0][0], np.zeros(1, np.uint16)
    scans = [Printer((face,), 0).scans(Task(Path(), part, 5, one, one, ("print",))) for part in range(4)]
    assert len({bytes(each) for each in scans}) == 4
    again = Printer((face,), 0).scans(Task(Path(), 0, 4, *2 * (np.zeros(2, np.uint16),), ("print",)))
    assert (again[1] == scans[0][0]).all()


def test_a_folder_in_which_another_process_works_is_busy(tmp_path: Path) -> None:
    with lock_store(tmp_path / "set"), pytest.raises(BusyError, match="another process"):
        make(tmp_path / "set", SMALL, jobs=1)


def test_the_label_of_a_scan_is_the_character_that_it_shows(made: JapaneseSet) -> None:
    """Each scan of a large character overlaps more with its clean glyph than with other glyphs."""
    labels = made.labels(np.arange(400))
    faces = [Face(each["design"], typefaces.installed()[0][0].file) for each in made.families[0]["faces"]]
    kanji = np.flatnonzero(labels > 250)[:60]
    clean = np.stack(
        [printing.unpacked(printing.print_clean(faces[0], classes()[labels[at]])) for at in kanji]
    )
    scans = printing.unpacked(made.scans("originals")[kanji])
    soft = [
        np.stack([np.kron(image.reshape(16, 4, 16, 4).mean((1, 3)), np.ones((1, 1))) for image in each])
        for each in (clean.astype(float), scans.astype(float))
    ]
    flat = [each.reshape(len(each), -1) - each.reshape(len(each), -1).mean(1, keepdims=True) for each in soft]
    flat = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in flat]
    assert ((flat[1] @ flat[0].T).argmax(1) == np.arange(len(kanji))).mean() > 0.8


@pytest.mark.soak
def test_the_same_request_gives_the_same_files_also_in_several_processes(
    made: JapaneseSet, tmp_path: Path
) -> None:
    again = make(tmp_path / "set", SMALL, jobs=2)
    assert files(again.path) == files(made.path)
    assert make(tmp_path / "set", SMALL).identity == made.identity


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_stopped(
    made: JapaneseSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "_SCANS_PER_FILE", 512)
    for request in (replace(SMALL, seed=8), SMALL):  # what the first one leaves must not be taken
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "set", request, jobs=1, progress=stop)
    with pytest.raises(SourceError, match="cotswold data make japanese-ocr"):
        JapaneseSet(tmp_path / "set")
    printed: list[int] = []
    scans = Printer.scans

    def counted(printer: Printer, task: Task) -> printing.Bits:
        printed.append(task.start)
        return scans(printer, task)

    monkeypatch.setattr(Printer, "scans", counted)
    again = make(tmp_path / "set", SMALL, jobs=1)
    assert files(again.path) == files(made.path)
    assert printed == [*range(512, 3500, 512), 0, 0, 0]
    assert not (again.path / "unfinished").exists()


def test_a_set_of_another_request_is_not_overwritten(made: JapaneseSet) -> None:
    before = files(made.path)
    with pytest.raises(UserError, match="seed 7"):
        make(made.path, replace(SMALL, seed=8))
    assert files(made.path) == before


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match=r"letter\.txt"):
        make(tmp_path, SMALL, jobs=1)
    assert files(tmp_path) == {"letter.txt": b"mine"}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"originals": 3202}, "3,203"),
        ({"held_out": 0}, "held_out must be at least 1"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"seed": -1}, "seed must be in"),
        ({"frequencies": "odd"}, "natural"),
    ],
)
def test_impossible_requests_are_refused(request_: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Request(**request_)  # type: ignore[arg-type]  # that they are wrong is what is tested


def test_a_family_that_is_not_there_or_all_of_them_cannot_be_held_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="IPA Gothic, Noto Serif CJK, IPA Mincho"):
        make(tmp_path / "a", replace(SMALL, held_families=("Comic",)), jobs=1)
    everything = ("IPA Gothic", "Noto Serif CJK", "IPA Mincho")
    with pytest.raises(UserError, match="none remains for training"):
        make(tmp_path / "b", replace(SMALL, held_families=everything), jobs=1)


def test_without_typefaces_the_packages_to_install_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (Design("A", "fonts-a", ("a.ttf",)), Design("B", "fonts-b", ("b.ttf", "c.ttf")))
    monkeypatch.setattr(typefaces, "DESIGNS", few)
    with pytest.raises(SourceError, match="apt install fonts-a fonts-b"):
        make(tmp_path / "set", SMALL)
    with pytest.raises(SourceError, match="is not a folder"):
        make(tmp_path / "set", SMALL, fonts=[tmp_path / "missing"])


def test_a_damaged_typeface_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(typefaces, "DESIGNS", (*typefaces.DESIGNS, Design("Broken", "f", ("broken.ttf",))))
    with pytest.raises(SourceError, match=r"broken\.ttf cannot be read"):
        make(tmp_path / "set", SMALL, fonts=[tmp_path])


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "manifest", "format"])
def test_a_damaged_set_is_refused_by_name(copied: Path, damage: str) -> None:
    scans, manifest = copied / "originals.scans.npy", copied / "japanese-ocr.json"
    content = bytearray(scans.read_bytes())
    if damage == "cut":
        scans.write_bytes(content[:-8])
    elif damage == "flip":
        content[-3] ^= 1
        scans.write_bytes(content)
    elif damage == "gone":
        scans.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text().replace('"seed": 7', '"seed": 8'))
    else:
        manifest.write_text(json.dumps({"format": "something else"}))
    with pytest.raises(SourceError, match=r"originals\.scans|japanese-ocr\.json"):
        JapaneseSet(copied).samples(np.arange(3))


def test_the_source_gives_the_patterns_of_the_set_and_knows_its_splits(made: JapaneseSet) -> None:
    source = open_vectors(made.path, labels="file")
    assert len(source) == 9000 + 60 + 60 and source.features == 400 and source.classes == classes()
    numbers = np.array([8999, 0, 5000, 9000, 9119])
    wanted = np.concatenate(
        [
            made.samples(numbers[:3]),
            made.held_out("validation")[0][:1],
            made.held_out("degradations")[0][-1:],
        ]
    )
    assert np.array_equal(np.rint(source.rows(numbers) * 255), wanted)
    assert (source.labels(numbers)[:3] == made.labels(numbers[:3])).all()
    assert source.splits_of(numbers) == ["train", "train", "train", "validation", "test"]


def test_a_number_after_the_colon_is_how_many_patterns_are_trained_on(made: JapaneseSet) -> None:
    few, many = open_vectors(f"{made.path}:4000"), open_vectors(f"{made.path}:20000")
    assert (len(few), len(many)) == (4120, 20120)
    numbers = np.arange(3900, 4000)
    assert (few.rows(numbers) == many.rows(numbers)).all()
    assert few.identity != many.identity


def test_a_part_after_the_colon_is_that_part_alone(made: JapaneseSet) -> None:
    source = open_samples(f"{made.path}:families", labels="file")
    assert source.kind == "vectors" and len(source) == 60
    assert (source.labels(np.arange(60)) == made.held_out("families")[1]).all()


@pytest.mark.parametrize("what", ["nothing", "0", "-5", "1e6"])
def test_anything_else_after_the_colon_is_refused(made: JapaneseSet, what: str) -> None:
    with pytest.raises(SourceError, match="families"):
        open_vectors(f"{made.path}:{what}")


def test_the_set_is_no_images_no_frames_and_has_no_folders(made: JapaneseSet) -> None:
    with pytest.raises(SourceError, match="vectors, not images"):
        open_source(made.path)
    with pytest.raises(SourceError, match="vectors, not frames"):
        open_vectors(made.path, "frames")
    with pytest.raises(SourceError, match="no folders"):
        open_vectors(made.path, labels="folders")
    with pytest.raises(SourceError, match="include"):
        open_vectors(made.path, include=["a"])


def test_a_store_of_the_set_holds_its_patterns(made: JapaneseSet, tmp_path: Path) -> None:
    source = open_vectors(f"{made.path}:500", labels="file")
    prepare(source, tmp_path / "store", VectorPreparation(400, standardise=False, dtype="float16"), seed=2)
    store = Store(tmp_path / "store")
    assert store.splits == {"train": 500, "validation": 60, "test": 60}
    rows = np.rint(store.read("train", 0, 500)[:, :, 0, 0] * 255).astype(np.uint8)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, made.samples(np.arange(500))))


def test_a_data_set_makes_its_patterns_when_a_loader_asks_for_them(made: JapaneseSet) -> None:
    dataset = GeneratedDataset(made, 5000)
    assert (len(dataset), len(GeneratedDataset(made))) == (5000, 9000)
    (ink, labels), *_ = DataLoader(dataset, batch_sampler=[[4999, 0, 17]])
    numbers = np.array([4999, 0, 17])
    assert (torch.round(ink * 255).numpy() == made.samples(numbers)).all() and ink.dtype == torch.float32
    assert (labels.numpy() == made.labels(numbers)).all()
    assert torch.equal(dataset[17][0], ink[2])
    with pytest.raises(IndexError, match="5,000"):
        dataset[5000]
    with pytest.raises(UserError, match="at least 1, got 0"):
        GeneratedDataset(made, 0)


def test_sources_and_sets_go_to_other_processes(made: JapaneseSet) -> None:
    source = pickle.loads(pickle.dumps(open_vectors(made.path)))
    assert (source.rows(np.arange(4)) == open_vectors(made.path).rows(np.arange(4))).all()
    assert pickle.loads(pickle.dumps(made)).identity == made.identity


@pytest.mark.parametrize("kind", ["print", *printing.UNSEEN])
def test_every_degradation_keeps_some_ink_and_differs_from_the_others(kind: printing.Degradation) -> None:
    face = typefaces.installed()[0][0]
    scans = [printing.print_scan(face, "国", kind, np.random.default_rng(n)) for n in range(20)]
    ink = np.array([np.bitwise_count(scan).sum() for scan in scans])
    assert ink.min() > 100 and ink.max() < 3600
    assert len({bytes(scan) for scan in scans}) == 20


def test_an_array_is_written_as_numpy_writes_it(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.uint64).reshape(3, 4)
    making.save(tmp_path / "ours.npy", array)
    np.save(tmp_path / "theirs.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


def test_a_full_disk_is_called_so_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(_: Path) -> Iterator[BinaryIO]:
        with Path("/dev/full").open("wb") as file:
            yield file

    monkeypatch.setattr(making, "writing_whole", full)
    with pytest.raises(DiskFullError, match="run the same command again"):
        making.save(tmp_path / "scans.npy", np.zeros(1 << 16, np.uint64))
