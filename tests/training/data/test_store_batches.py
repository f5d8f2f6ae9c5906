"""Windows of the images, assembled, are the images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path

import pytest
import torch
from tests.support.training.small_recipes import SIDE, greedy, supervised
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import UserError
from cotswold.geometry import Box
from cotswold.recipe import Recipe
from cotswold.training.data.store_batches import TrainBatches, ValidationBatches, labelled_batches
from cotswold.training.data.stores import open_store
from cotswold.training.strategies.base import Batch, Share

GRIDS = [(1, 1), (2, 2), (1, 3), (3, 2), (5, 1), (7, 6)]
"""Grids, of which some do not divide the side of an image evenly; in the last two later ranks have nothing.
"""
STEPS = 14
"""Steps of more than two epochs."""


@pytest.fixture
def prepared(images: Path, stores: Path, tmp_path: Path) -> Callable[[str], tuple[Store, Recipe]]:
    def prepare(text: str) -> tuple[Store, Recipe]:
        (tmp_path / "recipe.toml").write_text(text)
        recipe = recipes.load(tmp_path / "recipe.toml")
        return open_store(recipe, stores), recipe

    return prepare


@pytest.fixture
def unlabelled(prepared: Callable[[str], tuple[Store, Recipe]], images: Path) -> tuple[Store, Recipe]:
    return prepared(greedy(images))


@pytest.fixture
def labelled(prepared: Callable[[str], tuple[Store, Recipe]], images: Path) -> tuple[Store, Recipe]:
    return prepared(supervised(images))


def windows(grid: tuple[int, int]) -> list[Box]:
    """Return a window for each rank of a grid, rounded up, so that later ranks have less."""
    (rows, columns), ends = grid, [-(-SIDE // parts) for parts in grid]
    return [
        Box(
            (min(y * ends[0], SIDE), min(x * ends[1], SIDE)),
            (min((y + 1) * ends[0], SIDE), min((x + 1) * ends[1], SIDE)),
        )
        for y, x in product(range(rows), range(columns))
    ]


def put_together(parts: list[Tensor], grid: tuple[int, int]) -> Tensor:
    rows, columns = grid
    return torch.cat(
        [torch.cat(parts[row * columns : (row + 1) * columns], dim=3) for row in range(rows)], dim=2
    )


def training(store: Store, box: Box | None = None) -> Iterator[Batch]:
    with TrainBatches(store, 8, 5, "cpu", box=box) as found:
        yield from islice(found, STEPS)


def same(batches: list[Batch], ranks: list[list[Batch]], grid: tuple[int, int]) -> bool:
    """True if the assembled images of all ranks and the labels of each are those of one process."""
    assert {len(each) for each in ranks} == {len(batches)}
    return all(
        torch.equal(batch.inputs, put_together([part.inputs for part in parts], grid))
        and all(labels(part) == labels(batch) for part in parts)
        for batch, *parts in zip(batches, *ranks, strict=True)
    )


def labels(batch: Batch) -> list[int] | None:
    return None if batch.targets is None else batch.targets.tolist()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_windows_of_a_grid_are_the_training_images_for_epochs(
    grid: tuple[int, int], labelled: tuple[Store, Recipe]
) -> None:
    store, _ = labelled
    whole = list(training(store))
    assert {tuple(batch.inputs.shape) for batch in whole} == {(8, 3, SIDE, SIDE)}
    assert same(whole, [list(training(store, box)) for box in windows(grid)], grid)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_windows_of_a_grid_are_the_held_out_images(
    grid: tuple[int, int], labelled: tuple[Store, Recipe]
) -> None:
    whole = list(ValidationBatches(*labelled).batches())
    assert len(whole) == 2
    assert same(whole, [list(ValidationBatches(*labelled, box=box).batches()) for box in windows(grid)], grid)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20], ids=["read again", "kept"])
def test_held_out_maps_are_the_same_each_time_and_in_each_window(
    kept_bytes: int, unlabelled: tuple[Store, Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.training.data.store_batches.KEPT_BYTES", kept_bytes)
    whole = list(ValidationBatches(*unlabelled).maps())
    assert sum(len(maps) for maps in whole) == 12
    held_out = [ValidationBatches(*unlabelled, box=box) for box in windows((1, 3))]
    for _ in range(2):
        for maps, *parts in zip(whole, *(each.maps() for each in held_out), strict=True):
            assert torch.equal(maps, put_together(parts, (1, 3)))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_labelled_batches_have_the_labels_in_every_window(split: str, labelled: tuple[Store, Recipe]) -> None:
    whole = [Batch(*each) for each in labelled_batches(*labelled, split)]
    parts = [
        [Batch(*each) for each in labelled_batches(*labelled, split, box=box)] for box in windows((2, 2))
    ]
    assert same(whole, parts, (2, 2))


def test_a_run_on_one_grid_goes_on_in_another_or_in_one_process(unlabelled: tuple[Store, Recipe]) -> None:
    store, _ = unlabelled
    whole = list(training(store))
    with TrainBatches(store, 8, 5, "cpu", box=windows((2, 2))[3]) as first:
        list(islice(first, 9))
        state = first.state_dict()
    for grid in ((1, 3), (1, 1)):
        ranks = []
        for box in windows(grid):
            with TrainBatches(store, 8, 5, "cpu", box=box) as later:
                later.load_state_dict(state)
                ranks.append(list(islice(later, STEPS - 9)))
        assert same(whole[9:], ranks, grid)


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_the_parts_of_replicas_are_the_batches_and_resume_on_another_number(
    replicas: int, labelled: tuple[Store, Recipe]
) -> None:
    store, _ = labelled
    whole = list(training(store))
    with TrainBatches(store, 8, 5, "cpu", share=Share(1, 2)) as first:
        list(islice(first, 9))
        state = first.state_dict()
    parts = []
    for index in range(replicas):
        with TrainBatches(store, 8, 5, "cpu", share=Share(index, replicas)) as later:
            later.load_state_dict(state)
            parts.append(list(islice(later, STEPS - 9)))
    for batch, *own in zip(whole[9:], *parts, strict=True):
        assert torch.equal(batch.inputs, torch.cat([each.inputs for each in own]))
        assert labels(batch) == [label for each in own for label in labels(each) or []]


def test_replicas_take_turns_at_the_held_out_batches(labelled: tuple[Store, Recipe]) -> None:
    whole = list(ValidationBatches(*labelled).batches())
    for index in range(3):
        own = list(ValidationBatches(*labelled, share=Share(index, 3)).batches())
        assert [labels(each) for each in own] == [labels(each) for each in whole[index::3]]


def test_more_replicas_than_samples_of_a_batch_are_refused(labelled: tuple[Store, Recipe]) -> None:
    with pytest.raises(UserError, match="9 replicas need 9 samples"):
        TrainBatches(labelled[0], 8, 5, "cpu", share=Share(0, 9))
