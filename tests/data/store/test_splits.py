"""Names of tests, anywhere in a path, exclude samples from training, and the origin of splits is reported."""

from __future__ import annotations

import io
import struct
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.conftest import Named

from cotswold.data import Preparation, Source, Store, open_source, prepare
from cotswold.data.sources.file_names import split_of_folder
from cotswold.data.store.splits import Request, Splits, assign_splits, rule
from cotswold.errors import SourceError, UserError

PLAIN = Preparation((8, 8), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")


def zipped(path: Path, names: Sequence[str]) -> Source:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, image.getvalue())
    return open_source(path)


def asked(splits: Splits, source: Source, validation: float = 0.1, test: float = 0.0) -> Request:
    decided = rule(source, splits)
    return Request(
        "x",
        False,
        PLAIN,
        decided.splits,
        validation,
        test,
        0,
        None,
        test_by_name=decided.test_by_name,
        validation_by_name=decided.validation_by_name,
    )


def named(source: Source, request: Request) -> dict[str, Counter[str | None]]:
    """Return the names of the images of each split."""
    parts = assign_splits(source, request)
    return {split: Counter(source.split_of(int(i)) for i in order) for split, order in parts.items()}


def mnist(folder: Path, train: int = 60, test: int = 20) -> None:
    folder.mkdir(exist_ok=True)
    for split, count in (("train", train), ("t10k", test)):
        images = np.full((count, 8, 8), 200 if split == "train" else 40, np.uint8)
        head = bytes([0, 0, 8, 3]) + struct.pack(">3I", *images.shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + images.tobytes())


def test_the_test_images_of_mnist_are_tests_unless_another_thing_is_asked_for(tmp_path: Path) -> None:
    mnist(tmp_path / "mnist")
    summary = prepare(open_source(tmp_path / "mnist"), tmp_path / "s", PLAIN, validation=0.1, jobs=1)
    store = Store(tmp_path / "s")
    assert store.splits == {"train": 54, "validation": 6, "test": 20}
    for split, value in {"train": 200, "validation": 200, "test": 40}.items():
        assert np.unique(store.read_stored(split, 0, store.splits[split])).tolist() == [value]
    assert summary.notes == store.notes
    assert "splits by the names of folders or files: 60 train and 20 test" in store.notes[0]
    assert "validation is drawn from train" in store.notes[0]


def test_what_is_named_a_test_stays_one_though_splits_are_drawn_at_random(tmp_path: Path) -> None:
    mnist(tmp_path / "mnist")
    source = open_source(tmp_path / "mnist")
    found = named(source, asked("random", source, test=0.1))
    assert found == {
        "train": {"train": 48},
        "validation": {"train": 6},
        "test": {"train": 6, "test": 20},
    }
    assert "20 of 80 images are named test and stay there" in rule(source, "random").explanation


def test_the_batches_of_cifar_are_split_by_their_names(tmp_path: Path) -> None:
    for name, count in (("data_batch_1.bin", 6), ("data_batch_2.bin", 6), ("test_batch.bin", 4)):
        (tmp_path / name).write_bytes(bytes(3073 * count))
    source = open_source(tmp_path)
    assert named(source, asked("auto", source, 0)) == {"train": {"train": 12}, "test": {"test": 4}}


@pytest.mark.parametrize(
    "top", ["", "pets/", "download/pets-v2/", "Train and test/"], ids=["none", "one", "two", "misleading"]
)
@pytest.mark.parametrize(
    "words",
    [("train", "test"), ("Training", "Testing"), ("training_set", "test_set"), ("train2017", "val2017")],
)
def test_splits_are_found_below_folders_that_hold_everything(
    top: str, words: tuple[str, str], tmp_path: Path
) -> None:
    names = [f"{top}{word}/{kind}/{k}.png" for word in words for kind in ("cat", "dog") for k in range(5)]
    source = zipped(tmp_path / "a.zip", names)
    other = "validation" if words[1].startswith("val") else "test"
    assert named(source, asked("auto", source, 0)) == {"train": {"train": 10}, other: {other: 10}}


def test_splits_inside_the_folders_of_classes_are_found(tmp_path: Path) -> None:
    names = [f"all/{kind}/{word}/{k}.png" for kind in "ab" for word in ("train", "test") for k in range(3)]
    source = zipped(tmp_path / "a.zip", names)
    assert named(source, asked("auto", source, 0)) == {"train": {"train": 6}, "test": {"test": 6}}


def test_a_class_that_is_called_like_a_split_is_none(tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", [f"{kind}/{k}.png" for kind in ("train", "test", "bus") for k in range(4)])
    source = open_source(tmp_path / "a.zip", labels="folders")
    assert source.classes == ("bus", "test", "train")
    assert {source.split_of(i) for i in range(12)} == {None}
    assert len(assign_splits(source, asked("auto", source, 0))["train"]) == 12


def test_images_beside_the_named_ones_are_for_training_and_tests_still_are_none(tmp_path: Path) -> None:
    names = [f"{folder}/{k}.png" for folder in ("train", "test", "extra") for k in range(10)]
    source = zipped(tmp_path / "a.zip", names)
    assert rule(source, "auto").splits == "random"
    found = named(source, asked("auto", source))
    assert found["test"] == {"test": 10}
    assert found["train"] + found["validation"] == {"train": 10, None: 10}


@pytest.mark.parametrize("folder", ["train", "test", "holiday"])
def test_a_source_with_one_name_or_none_is_split_at_random(folder: str, tmp_path: Path) -> None:
    source = zipped(tmp_path / "a.zip", [f"{folder}/{k}.png" for k in range(20)])
    parts = assign_splits(source, asked("auto", source))
    assert {split: len(order) for split, order in parts.items()} == {"train": 18, "validation": 2}
    assert ("at random" in rule(source, "auto").explanation) == (folder != "holiday")


@settings(max_examples=200)
@given(
    names=st.lists(st.sampled_from(["train", "validation", "test", None]), min_size=1, max_size=60),
    splits=st.sampled_from(["auto", "random"]),
    validation=st.floats(0, 0.6),
    test=st.floats(0, 0.39),
    limit=st.none() | st.integers(1, 80),
)
def test_no_image_that_is_called_test_is_trained_on_unless_all_are(
    names: list[str | None], splits: Splits, validation: float, test: float, limit: int | None
) -> None:
    source = Named(names)
    decided = rule(source, splits)
    request = Request(
        "",
        False,
        PLAIN,
        decided.splits,
        validation,
        test,
        0,
        limit,
        test_by_name=decided.test_by_name,
        validation_by_name=decided.validation_by_name,
    )
    try:
        parts = assign_splits(source, request)
    except SourceError:
        assert limit is not None and limit < len(names)
        return
    together = np.concatenate(list(parts.values()))
    assert len(together) == len(set(together.tolist())) == min(len(names), limit or len(names))
    if set(names) != {"test"}:
        trained = [*parts["train"], *parts.get("validation", [])]
        assert "test" not in {names[index] for index in trained}


def test_words_that_only_begin_like_a_split_are_none() -> None:
    for word in ("train_station", "test-tubes", "valley", "settest", "data", "", "12"):
        assert split_of_folder(word) is None
    for word in ("train", "Test", "val_images", "test-data", "trainset", "training_set", "validation2"):
        assert split_of_folder(word) is not None


def test_another_word_than_the_three_is_refused(tmp_path: Path) -> None:
    source = zipped(tmp_path / "a.zip", ["a.png"])
    with pytest.raises(UserError, match="must be 'auto', 'random' or 'folders', got 'alphabet'"):
        rule(source, "alphabet")  # type: ignore[arg-type]  # wrong on purpose


def test_a_store_that_mixed_tests_into_training_is_not_taken_for_one_that_did_not(tmp_path: Path) -> None:
    mnist(tmp_path / "mnist")
    source = open_source(tmp_path / "mnist")
    safe = asked("random", source)
    before = Request("x", False, PLAIN, "random", 0.1, 0.0, 0, None)
    assert safe.state() != before.state()
    plain = zipped(tmp_path / "a.zip", [f"{k}.png" for k in range(5)])
    assert asked("auto", plain).state() == before.state()  # stores of earlier versions are still found


def test_a_folder_called_dev_is_validation(tmp_path: Path) -> None:
    names = [f"{word}/{kind}/{k}.png" for word in ("train", "dev") for kind in "ab" for k in range(5)]
    source = zipped(tmp_path / "a.zip", names)
    assert named(source, asked("auto", source)) == {"train": {"train": 10}, "validation": {"validation": 10}}


def test_what_is_named_validation_is_not_trained_on_though_other_images_lie_beside(tmp_path: Path) -> None:
    names = [f"{folder}/{k}.png" for folder in ("train", "val", "extra") for k in range(10)]
    source = zipped(tmp_path / "a.zip", names)
    found = named(source, asked("auto", source, 0.2))
    assert found == {"train": {"train": 10, None: 10}, "validation": {"validation": 10}}
    assert "10 of 30 images are named validation and stay there" in rule(source, "auto").explanation
    assert asked("auto", source).state()["validation_by_name"]


def test_validation_is_trained_on_where_there_is_nothing_else_but_tests(tmp_path: Path) -> None:
    source = zipped(
        tmp_path / "a.zip", [f"{folder}/{k}.png" for folder in ("val", "test") for k in range(10)]
    )
    assert named(source, asked("auto", source)) == {
        "train": {"validation": 9},
        "validation": {"validation": 1},
        "test": {"test": 10},
    }


def test_fractions_are_drawn_from_every_class_alike(tmp_path: Path) -> None:
    sizes = {"a": 100, "b": 40, "c": 20, "d": 1}
    names = [f"{kind}/{k}.png" for kind, count in sizes.items() for k in range(count)]
    zipped(tmp_path / "a.zip", names)
    source = open_source(tmp_path / "a.zip", labels="folders")
    parts = assign_splits(source, asked("auto", source, 0.1, 0.2))
    counts = {
        split: [Counter(source.classes[source.label(int(i))] for i in order)[kind] for kind in "abcd"]
        for split, order in parts.items()
    }
    assert counts["validation"] == [10, 4, 2, 0]
    assert counts["test"] == [20, 8, 4, 0]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(161))


@pytest.mark.parametrize(
    ("names", "classes", "said"),
    [
        (["cat/2019/a.png", "cat/2020/b.png", "dog/2019/c.png"], ("cat", "dog"), "upper folders are"),
        (["train/cat/1/a.png", "test/cat/b.png", "train/dog/c.png"], ("cat", "dog"), "of class 'cat'"),
        (["pets/cat/a.png", "cars/vw/b.png"], ("cat", "vw"), "right above the files"),
        (["cat/train/a.png", "cat/test/b.png", "dog/train/c.png"], ("cat", "dog"), ""),
        (["all/cat/a.png", "all/dog/b.png"], ("cat", "dog"), ""),
    ],
)
def test_classes_are_the_folders_that_can_be_classes_and_a_choice_is_said(
    names: list[str], classes: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    zipped(tmp_path / "a.zip", names)
    source = open_source(tmp_path / "a.zip", labels="folders")
    assert source.classes == classes
    assert source.label(sorted(names).index(names[0])) == 0
    assert said in " ".join(source.settle()) and bool(said) == bool(source.settle())


def test_a_stray_image_beside_the_folders_of_classes_has_no_label(tmp_path: Path) -> None:
    zipped(tmp_path / "a.zip", ["train/cat/a.png", "train/dog/b.png", "train/stray.png", "test/cat/c.png"])
    with pytest.raises(SourceError, match=r"train/stray\.png is in no class folder"):
        open_source(tmp_path / "a.zip", labels="folders")


def test_folders_whose_names_differ_in_unicode_form_alone_are_one_class(tmp_path: Path) -> None:
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    zipped(tmp_path / "a.zip", [f"train/{one}/a.png", "train/bus/c.png", f"test/{other}/b.png"])
    assert open_source(tmp_path / "a.zip", labels="folders").classes == ("bus", one)
