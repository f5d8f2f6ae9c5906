"""Numbers of more than 8 bits: black and white are chosen once for a whole source, and reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image

from cotswold.data import Preparation, Source, Store, Transform, open_source, prepare, stream
from cotswold.data.formats import intensity_range as grey_levels
from cotswold.data.formats.image import BrokenImageError
from cotswold.data.formats.intensity_range import Range, Ranges, range_of
from cotswold.errors import SourceError
from cotswold.files import MalformedError

PLAIN = Preparation((16, 16), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")


def of_array(path: Path, array: NDArray[np.generic]) -> Source:
    np.save(path / "a.npy", array)
    return open_source(path / "a.npy")


def grey(source: Source, index: int) -> NDArray[np.uint8]:
    return np.asarray(source.read(index))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint16", "int32"])
def test_blank_images_at_the_beginning_do_not_brighten_the_others(dtype: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 16, 16)).astype(dtype)
    images[:70] = 0
    assert (grey(of_array(tmp_path, images), 75) == images[75]).all()


def test_one_image_that_is_not_finite_is_left_out_by_name_and_harms_no_other(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((30, 16, 16), np.float32)
    expected = [grey(of_array(tmp_path, images), index) for index in range(30)]
    images[5, 3, 3], images[9, 0, 0] = np.nan, np.inf
    source = of_array(tmp_path, images)
    for index in set(range(30)) - {5, 9}:
        assert (grey(source, index) == expected[index]).all()
    summary = prepare(source, tmp_path / "s", PLAIN, validation=0, jobs=1)
    assert summary.splits == {"train": 28}
    assert sorted(each.split(":")[0] for each in summary.broken_files) == ["a.npy[5]", "a.npy[9]"]
    assert all("infinite or NaN" in each for each in summary.broken_files)


@pytest.mark.parametrize(("bits", "kept"), [(8, 256), (10, 256), (12, 256), (14, 256), (16, 256)])
def test_arrays_of_fewer_than_16_bits_keep_256_grey_levels(bits: int, kept: int, tmp_path: Path) -> None:
    images = np.arange(1 << bits, dtype=np.uint16).reshape(1, -1, 16)
    found = grey(of_array(tmp_path, images), 0)
    assert len(np.unique(found)) == kept
    assert (np.diff(found.reshape(-1).astype(int)) >= 0).all()


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_a_folder_of_12_bit_microscopy_keeps_256_grey_levels_by_one_range(kind: str, tmp_path: Path) -> None:
    ramp = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    (tmp_path / "in").mkdir()
    for name, values in {"bright": ramp, "dark": ramp // 16}.items():
        Image.fromarray(values).save(tmp_path / "in" / f"{name}.{kind}")
    source = open_source(tmp_path / "in")
    assert len(np.unique(grey(source, 0))) == 256
    assert grey(source, 1).max() == 15  # as dark beside the other as it was
    (said,) = source.settle()
    assert said == "grey levels: integers from 0 to 4095 are read as 12 bits"


def test_a_zip_of_deep_images_has_one_range_too(tmp_path: Path) -> None:
    import zipfile

    for name, value in (("a", 4095), ("b", 256)):
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / f"{name}.png")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in "ab":
            archive.write(tmp_path / f"{name}.png", f"{name}.png")
    source = open_source(tmp_path / "all.zip")
    assert [int(grey(source, index)[0, 0]) for index in range(2)] == [255, 16]


def test_a_float_tiff_with_an_infinite_pixel_is_left_out_by_name_and_does_not_become_black(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "in" / "good.tif")
    ramp[3, 4] = np.inf
    Image.fromarray(ramp).save(tmp_path / "in" / "bad.tif")
    source = open_source(tmp_path / "in")
    with pytest.raises(BrokenImageError, match=r"bad\.tif: contains infinite"):
        source.read(0)
    assert grey(source, 1).max() == 255
    summary = prepare(source, tmp_path / "s", PLAIN, validation=0, jobs=1)
    assert summary.broken == 1 and "bad.tif" in summary.broken_files[0]


def test_images_of_8_bits_are_neither_looked_through_nor_spoken_of(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for kind in ("jpg", "png", "gif"):
        Image.new("RGB", (4, 4), (9, 9, 9)).save(tmp_path / "in" / f"a.{kind}")
    assert open_source(tmp_path / "in").settle() == ()


def test_the_range_is_found_once_and_not_at_every_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def counted(values: NDArray[np.generic]) -> Range | None:
        looked.append(len(values))
        return range_of(values)

    monkeypatch.setattr(grey_levels, "range_of", counted)
    source = of_array(tmp_path, np.random.default_rng(0).random((50, 8, 8)))
    source.settle()
    for index in range(50):
        source.read(index)
    assert looked == [50]


def test_what_was_decided_is_said_by_prepare_and_kept_in_the_store(tmp_path: Path) -> None:
    source = of_array(tmp_path, np.random.default_rng(0).integers(0, 4096, (30, 16, 16), np.uint16))
    summary = prepare(source, tmp_path / "s", PLAIN, jobs=1)
    said = "grey levels: integers from 0 to 4095 are read as 12 bits"
    assert said in summary.notes and said in Store(tmp_path / "s").notes


def test_every_process_and_thread_has_the_same_levels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 1 << 12, (200, 16, 16), np.uint16)
    images[:150] >>= 6
    source = of_array(tmp_path, images)
    one = prepare(source, tmp_path / "one", PLAIN, jobs=1)
    two = prepare(of_array(tmp_path, images), tmp_path / "two", PLAIN, jobs=2)
    assert one.identity == two.identity
    transform = Store(tmp_path / "one").transform
    for batch, indices in stream(of_array(tmp_path, images), transform, 50, threads=2):
        expected = (images[indices.numpy()] >> 4) / np.float32(255)
        assert np.allclose(batch[:, 0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((100, 4, 4), 300.0), "from 300 to 300; scale them"),
        (np.concatenate([np.zeros((90, 4, 4)), np.full((2, 4, 4), -1.0)]), "from -1 to 0; scale them"),
        (np.full((3, 4, 4), 1 << 16, np.int64), "scale them"),
        (np.full((3, 4, 4), -5, np.int16), "scale them"),
    ],
)
def test_arrays_out_of_range_are_refused_wherever_that_is_and_leave_no_store(
    array: NDArray[np.generic], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=says):
        prepare(of_array(tmp_path, array), tmp_path / "s", PLAIN, jobs=1)
    assert not (tmp_path / "s").exists()


@settings(max_examples=100, deadline=None)
@given(
    values=arrays.arrays(
        st.sampled_from(["uint16", "int32", "int64", "float32", "float64"]),
        st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
        elements=st.integers(0, 65_535),
        fill=st.nothing(),
    )
)
def test_levels_keep_the_order_of_numbers_and_never_wrap_around(values: NDArray[np.generic]) -> None:
    ranges = Ranges()
    ranges.add(values)
    flat = values.reshape(-1)
    found = ranges.apply(flat)
    assert found is not None
    order = np.argsort(flat, kind="stable")
    assert (np.diff(found[order].astype(int)) >= 0).all()
    assert str(ranges).startswith("grey levels: ")


def test_a_range_over_blocks_is_the_range_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grey_levels, "_BLOCK_BYTES", 100)
    images = np.random.default_rng(0).normal(size=(40, 3, 3)).astype(np.float32)
    images[7] = np.nan
    low, high = float(np.nanmin(images)), float(np.nanmax(images))
    assert range_of(images) == Range(low, high, integers=False)
    assert range_of(np.full((2, 3, 3), np.nan)) is None


def deep_folder(path: Path, *values: int) -> Source:
    path.mkdir()
    for number, value in enumerate(values):
        Image.fromarray(np.full((16, 16), value, np.uint16)).save(path / f"{number}.png")
    return open_source(path)


def test_other_images_are_black_and_white_where_the_training_images_were(tmp_path: Path) -> None:
    prepare(deep_folder(tmp_path / "in", 1000, 4095), tmp_path / "s", PLAIN, validation=0, jobs=1)
    transform = Transform.from_state(json.loads(json.dumps(Store(tmp_path / "s").transform.state())))
    darker = deep_folder(tmp_path / "darker", 1000)
    for images, _ in stream(darker, transform, 1):
        assert images[0, 0, 0, 0].item() * 255 == pytest.approx(1000 >> 4, abs=1)
    with Image.open(tmp_path / "darker" / "0.png") as image:
        assert transform(image)[0, 0, 0] * 255 == pytest.approx(1000 >> 4, abs=1)
    assert darker.settle() == ("grey levels: integers from 1000 to 1000 are read as 10 bits",)


def test_kinds_of_numbers_that_training_had_none_of_have_a_range_of_their_own(tmp_path: Path) -> None:
    source = of_array(tmp_path, np.linspace(0, 0.5, 256, dtype=np.float32).reshape(1, 16, 16))
    one = Ranges.from_state({"integers": [0, 4095]})
    assert (grey(source.with_ranges(one), 0) == grey(source, 0)).all()
    assert source.with_ranges(Ranges()) is source


@pytest.mark.parametrize("state", [{"integers": [5, 1]}, {"words": [0, 1]}, {"floats": [0, "nan"]}, [1], 3])
def test_a_transform_with_ranges_that_are_none_is_malformed(state: object) -> None:
    with pytest.raises(MalformedError, match="does not describe a transform"):
        Transform.from_state({**Transform(PLAIN).state(), "ranges": state})


@pytest.mark.parametrize("high", [1.02, 2.0, 15.9])
def test_floats_that_end_a_little_above_1_keep_256_grey_levels(high: float, tmp_path: Path) -> None:
    images = np.linspace(0, high, 256, dtype=np.float32).reshape(1, 16, 16)
    assert len(np.unique(grey(of_array(tmp_path, images), 0))) == 256
