from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from cotswold.data import Augmentation, Reader, Store, StoreDataset, keys
from cotswold.data.augment import normal, uniform, warp
from cotswold.data.augment.geometric import Affine, Flip, RandomCrop, Rotation, Translation
from cotswold.errors import UserError
from cotswold.geometry import Box

Float32 = NDArray[np.float32]
Tables = list[dict[str, Any]]

EVERY: Tables = [
    {"name": "translation", "pixels": 3},
    {"name": "translation", "fraction": 0.2, "fill": "zero"},
    {"name": "flip", "vertical": 0.5},
    {"name": "rotation", "degrees": 40.0, "fill": "reflect"},
    {"name": "affine", "scale": [0.8, 1.2], "shear": 10.0, "aspect": 1.3},
    {"name": "elastic", "alpha": 20.0, "sigma": 3.0},
    {"name": "random_crop", "padding": 4, "fill": "reflect"},
    {"name": "random_crop", "area": [0.4, 0.9], "aspect": 1.5},
    {"name": "colour_jitter", "brightness": 0.3, "contrast": 0.3, "saturation": 0.5, "hue": 30.0},
    {"name": "cutout", "pixels": 5},
    {"name": "noise", "std": 0.1},
]
MODES = {"edge": "nearest", "reflect": "mirror", "zero": "constant"}


def images(count: int, shape: tuple[int, int, int] = (3, 17, 22)) -> Float32:
    smooth = ndimage.gaussian_filter(
        np.random.default_rng(1).standard_normal((count, *shape)), (0, 0, 1.5, 1.5)
    )
    found: Float32 = smooth.astype(np.float32)
    return found


def some_keys(count: int, epoch: int = 0) -> NDArray[np.uint64]:
    return keys(3, epoch, np.arange(count))


@pytest.mark.parametrize("table", EVERY, ids=lambda each: "-".join(map(str, each.values()))[:30])
def test_a_variant_depends_on_its_own_values_and_key_alone(table: dict[str, Any]) -> None:
    values, drawn, one = images(9), some_keys(9), Augmentation.of([table])
    together = one(values, drawn)
    assert together.dtype == np.float32 and together.shape == values.shape
    assert not np.array_equal(together, values)
    for image in range(9):
        alone = one(values[image : image + 1], drawn[image : image + 1])
        assert alone.tobytes() == together[image : image + 1].tobytes()
    turned = one(values[::-1], drawn[::-1])
    assert turned[::-1].tobytes() == together.tobytes()


def test_threads_that_vary_at_the_same_time_get_the_same_bits() -> None:
    values, drawn, one = images(16), some_keys(16), Augmentation.of(EVERY)
    expected, found = one(values, drawn), [np.empty(0, np.float32)] * 4

    def vary(number: int) -> None:
        found[number] = pickle.loads(pickle.dumps(one))(values, drawn)

    threads = [threading.Thread(target=vary, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert all(each.tobytes() == expected.tobytes() for each in found)


@pytest.mark.parametrize("fill", MODES)
@pytest.mark.parametrize(
    "move",
    [
        Translation(pixels=5),
        Flip(1.0, 1.0),
        Rotation(60.0),
        Affine((0.6, 1.4), 1.5, 20.0),
        RandomCrop(padding=4),
        RandomCrop(area=(0.3, 0.8), aspect=1.4),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_move_is_what_scipy_makes_of_its_map(move: Any, fill: str) -> None:
    values, drawn = images(4), some_keys(4)
    table = {"name": move.name, **vars(move), "fill": fill}
    found = Augmentation.of([{key: one for key, one in table.items() if one is not None}])(values, drawn)
    middle = np.array([8.0, 10.5])
    for image, each in enumerate(move.before(drawn, 0, 17, 22)):
        square, shift = each[:, :2], each[:, 2]
        grid = np.stack(np.meshgrid(np.arange(17.0), np.arange(22.0), indexing="ij")).reshape(2, -1)
        places = square @ (grid - middle[:, None]) + (shift + middle)[:, None]
        if fill == "zero":  # SciPy cuts off half a pixel earlier
            padded = np.pad(values[image], ((0, 0), (30, 30), (30, 30)))
            places += 30
        else:
            padded = values[image]
        for channel in range(3):
            expected = ndimage.map_coordinates(padded[channel], places, order=1, mode=MODES[fill])
            assert np.abs(found[image, channel].reshape(-1) - expected).max() < 2e-5


def test_an_elastic_distortion_is_what_scipy_makes_of_the_same_numbers() -> None:
    values, drawn, sigma, alpha = images(5, (1, 28, 28)), some_keys(5), 4.0, 34.0
    found = Augmentation.of([{"name": "elastic", "alpha": alpha, "sigma": sigma}])(values, drawn)
    numbers = uniform(drawn, 1, (2, 28, 28), -1.0, 1.0)
    grid = np.stack(np.meshgrid(np.arange(28.0), np.arange(28.0), indexing="ij"))
    for image in range(5):
        smooth = [ndimage.gaussian_filter(each, sigma, mode="constant") for each in numbers[image]]
        expected = ndimage.map_coordinates(
            values[image, 0], grid + alpha * np.stack(smooth), order=1, mode="nearest"
        )
        assert np.abs(found[image, 0] - expected).max() < 1e-4


def test_moves_that_follow_each_other_are_one_map_in_their_order() -> None:
    """Use an image whose values are places, on which a second interpolation has no effect."""
    y, x = np.meshgrid(np.arange(41.0), np.arange(41.0), indexing="ij")
    values = np.stack([y, x])[None].astype(np.float32)
    drawn = some_keys(1)
    both = Augmentation.of([{"name": "rotation", "degrees": 20.0}, {"name": "translation", "pixels": 3}])
    turn, shift = Rotation(20.0).before(drawn, 0, 41, 41)[0], Translation(3).before(drawn, 8, 41, 41)[0]
    place = np.array([4.0, -2.0])
    expected = turn[:, :2] @ (place + shift[:, 2]) + 20
    assert np.abs(both(values, drawn)[0, :, 24, 18] - expected).max() < 1e-3


def test_smoothing_leaves_the_sum_of_a_field_inside() -> None:
    drawn = np.zeros((1, 2, 61, 61), np.float32)
    drawn[0, :, 30, 30] = 1
    smoothed = warp.smoothed(warp.smoothed(drawn, warp.gaussian(3.0), 3), warp.gaussian(3.0), 2)
    assert np.abs(smoothed.sum((2, 3)) - 1).max() < 1e-4
    assert np.abs(smoothed[0, 0] - ndimage.gaussian_filter(drawn[0, 0], 3.0)).max() < 1e-6


def test_draws_are_uniform_and_normal_and_do_not_hang_together() -> None:
    drawn = some_keys(2000)
    flat, bell = uniform(drawn, 5, 50), normal(drawn, 6, (5, 10)).reshape(2000, 50)
    assert flat.min() >= 0 and flat.max() < 1
    counts = np.histogram(flat, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 50  # chi-square of 19 degrees, far beyond 1 in 1,000
    assert abs(bell.mean()) < 0.02 and abs(bell.std() - 1) < 0.02
    assert abs(np.mean(bell**4) - 3) < 0.1
    for a, b in ((flat[1:], flat[:-1]), (flat[:, 1:], flat[:, :-1]), (flat, uniform(drawn, 7, 50))):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_seeds_epochs_and_rows_have_keys_of_their_own() -> None:
    found = {int(key) for seed in range(5) for epoch in range(5) for key in keys(seed, epoch, np.arange(100))}
    assert len(found) == 2500


def test_a_probability_is_how_many_are_moved() -> None:
    values, drawn = images(2000, (1, 4, 4)), some_keys(2000)
    one = Augmentation.of([{"name": "rotation", "degrees": 90.0, "probability": 0.25}])
    moved = (one(values, drawn) != values).any((1, 2, 3)).mean()
    assert 0.21 < moved < 0.29


def test_images_whose_colours_are_not_changed_keep_their_bits() -> None:
    values, drawn = images(400), some_keys(400)
    table = {"name": "colour_jitter", "brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 90.0}
    never = Augmentation.of([{**table, "probability": 0.0}])
    assert np.array_equal(never(values, drawn), values)
    sometimes = Augmentation.of([{**table, "probability": 0.5}])(values, drawn)
    same = (sometimes == values).all((1, 2, 3)).mean()
    assert 0.4 < same < 0.6


def test_hue_leaves_grey_and_brightness_as_they_are() -> None:
    values, drawn = images(6), some_keys(6)
    found = Augmentation.of([{"name": "colour_jitter", "hue": 120.0}])(values, drawn)
    assert np.abs(found - values).max() > 0.05
    assert np.abs(found.sum(1) - values.sum(1)).max() < 1e-5
    assert np.abs((found**2).sum(1) - (values**2).sum(1)).max() < 1e-5


def test_a_state_makes_the_same_augmentation() -> None:
    one = Augmentation.of(EVERY)
    again = Augmentation.of(json.loads(json.dumps(one.state())))
    assert again == one and again.state() == one.state()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "turning"}, "unknown transform 'turning'"),
        ({"name": "rotation", "degree": 3.0}, "no parameter degree"),
        ({"name": "rotation"}, "degrees"),
        ({"name": "rotation", "degrees": 500.0}, r"0\.\.180"),
        ({"name": "translation"}, "either pixels or fraction"),
        ({"name": "random_crop", "padding": 1, "area": [0.5, 1.0]}, "either padding or area"),
        ({"name": "noise", "std": 0.1, "probability": 2.0}, r"0\.\.1"),
        ({"name": "custom", "function": "nowhere_at_all:ink"}, "nowhere_at_all"),
        ({"name": "custom", "function": "json:nothing"}, "json has no nothing"),
    ],
)
def test_what_cannot_be_says_why(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Augmentation.of([table])


OWN = """
import numpy as np
from cotswold.data.augment import uniform

def ink(values, keys, strength=1.0):
    return values * (1 + strength * uniform(keys, 0, (1, 1, 1)))

def wide(values, keys):
    return np.concatenate([values, values])

def whole(values, keys):
    return values.astype(np.int64)

def lost(values, keys):
    values[...] = np.nan
    return values

def broken(values, keys):
    raise ValueError("no ink left")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_transforms_of_a_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_transforms_of_a_test"


def test_an_own_transform_gets_its_parameters_and_keys_of_its_own(own_module: str) -> None:
    table = {"name": "custom", "function": f"{own_module}:ink", "strength": 0.5}
    values, drawn = images(3), some_keys(3)
    once, twice = Augmentation.of([table]), Augmentation.of([table, table])
    factor = once(values, drawn) / values
    assert np.abs(factor - factor[:, :1, :1, :1]).max() < 1e-5
    assert factor.min() > 1 and factor.max() < 1.5
    second = (twice(values, drawn) / values / factor)[:, 0, 0, 0]
    assert np.abs(second - factor[:, 0, 0, 0]).min() > 1e-3


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("wide", "returned an array"),
        ("whole", "int64"),
        ("lost", "infinite or NaN"),
        ("broken", "no ink left"),
    ],
)
def test_an_own_transform_that_gives_nothing_usable_is_named(
    own_module: str, function: str, words: str
) -> None:
    one = Augmentation.of([{"name": "custom", "function": f"{own_module}:{function}"}])
    with pytest.raises(UserError, match=f"{own_module}:{function}.*{words}"):
        one(images(2), some_keys(2))


def test_a_reader_hands_out_other_variants_each_epoch_and_the_same_labels(store: Store) -> None:
    moved = Augmentation.of([{"name": "rotation", "degrees": 30.0}])
    plain = Reader(store, "train", 8, seed=4, shuffle=False)
    varied, again = (Reader(store, "train", 8, seed=4, shuffle=False, augmentation=moved) for _ in range(2))
    try:
        first, labels = varied.next()
        expected, expected_labels = plain.next()
        made = moved(np.ascontiguousarray(expected.numpy()), keys(4, 0, np.arange(8)))
        assert np.array_equal(first.numpy(), made)
        assert labels.tolist() == expected_labels.tolist()
        assert first.stride() == expected.stride()
        assert np.array_equal(again.next()[0], first)
        while varied.epoch == 0:
            varied.next()
        assert not np.array_equal(varied.next()[0], first)
    finally:
        for each in (plain, varied, again):
            each.close()


def test_a_window_is_cut_from_the_variant_of_the_whole(store: Store) -> None:
    moved = Augmentation.of([{"name": "elastic", "alpha": 30.0, "sigma": 3.0}])
    box = Box((3, 5), (20, 30))
    whole = Reader(store, "train", 8, seed=3, augmentation=moved)
    window = Reader(store, "train", 8, seed=3, augmentation=moved, box=box)
    try:
        assert np.array_equal(whole.next()[0][:, :, 3:20, 5:30], window.next()[0])
    finally:
        whole.close()
        window.close()


def test_a_reader_goes_on_with_the_same_variants_and_with_no_others(store: Store) -> None:
    moved = Augmentation.of([{"name": "rotation", "degrees": 30.0}])
    other = Augmentation.of([{"name": "rotation", "degrees": 20.0}])

    def reader(varying: Augmentation | None) -> Reader:
        return Reader(store, "train", 8, seed=4, augmentation=varying)

    first, later, plain = reader(moved), reader(moved), reader(None)
    try:
        for _ in range(2 * len(first) - 1):
            first.next()
        state = json.loads(json.dumps(first.state_dict()))
        later.load_state_dict(state)
        assert later.epoch == 1
        assert np.array_equal(first.next()[0], later.next()[0])
        assert "augmentation" not in plain.state_dict()
        for wrong, theirs in ((other, state), (None, state), (moved, plain.state_dict())):
            with pytest.raises(UserError, match="another augmentation"):
                reader(wrong).load_state_dict(theirs)
        plain.load_state_dict(plain.state_dict())
    finally:
        for each in (first, later, plain):
            each.close()


def test_a_data_set_for_other_loaders_hands_out_the_readers_variants(store: Store) -> None:
    moved = Augmentation.of([{"name": "rotation", "degrees": 30.0}])

    def dataset(augmentation: Augmentation | None) -> StoreDataset:
        return StoreDataset(store, "train", seed=4, shuffle=False, batch_size=8, augmentation=augmentation)

    varied, reader = dataset(moved), Reader(store, "train", 8, seed=4, shuffle=False, augmentation=moved)
    try:
        for epoch in range(2):
            varied.set_epoch(epoch)
            found = [each.numpy() for each, _ in varied]
            expected = [each.numpy() for each, _ in reader]
            assert len(found) == len(expected) + 1, "the last, which is not whole, a reader leaves out"
            for one, other in zip(found[:-1], expected, strict=True):
                assert np.array_equal(one, other)
        with pytest.raises(UserError, match="another augmentation"):
            dataset(None).load_state_dict(varied.state_dict())
    finally:
        reader.close()


@pytest.mark.parametrize("tables", [*[[each] for each in EVERY], EVERY], ids=lambda each: each[0]["name"])
def test_kernels_and_numpy_alone_give_the_same_bits(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    values, drawn, one = images(5), some_keys(5), Augmentation.of(tables)
    found = one(values, drawn)
    monkeypatch.setenv("COTSWOLD_KERNELS", "torch")
    assert one(values, drawn).tobytes() == found.tobytes()


def test_a_field_goes_through_the_moves_before_it() -> None:
    """The variant's pixel is displaced first; the resulting place is then rotated and scaled."""
    drawn, sigma, alpha = some_keys(2), 3.0, 20.0
    y, x = np.meshgrid(np.arange(41.0), np.arange(41.0), indexing="ij")
    values = np.repeat(np.stack([y, x])[None], 2, axis=0).astype(np.float32)
    tables: Tables = [
        {"name": "rotation", "degrees": 80.0},
        {"name": "elastic", "alpha": alpha, "sigma": sigma},
    ]
    found = Augmentation.of(tables)(values, drawn)
    numbers = uniform(drawn, 9, (2, 41, 41), -1.0, 1.0)
    for image, turn in enumerate(Rotation(80.0).before(drawn, 0, 41, 41)):
        smooth = [ndimage.gaussian_filter(each, sigma, mode="constant") for each in numbers[image]]
        place = np.array([26.0, 16.0]) + alpha * np.array([each[26, 16] for each in smooth])
        expected = turn[:, :2] @ (place - 20) + 20
        assert np.abs(found[image, :, 26, 16] - expected).max() < 1e-3
