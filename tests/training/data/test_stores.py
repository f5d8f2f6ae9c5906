"""Choice of a recipe's store."""

from __future__ import annotations

from pathlib import Path

from tests.support.training.runs import finish, started
from tests.support.training.small_recipes import draw_labelled, greedy

from cotswold import recipe as recipes
from cotswold.training import Resume, open_job
from cotswold.training.data.stores import open_store


def test_a_recipe_without_a_word_of_splits_trains_on_no_image_that_is_named_a_test(
    stores: Path, tmp_path: Path
) -> None:
    draw_labelled(tmp_path / "set" / "train", 12)
    draw_labelled(tmp_path / "set" / "test", 3, first=200)
    recipe = recipes.parse(greedy(tmp_path / "set"), "a test")
    assert recipe.data.model_dump()["splits"] == "auto"
    store = open_store(recipe, stores)
    assert store.splits["test"] == 6
    assert store.splits["train"] + store.splits["validation"] == 24
    assert "by the names of folders" in store.notes[0]


def test_a_run_that_began_with_splits_at_random_is_taken_up_by_a_recipe_that_leaves_them_open(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    text = greedy(images)
    run = finish(
        started(
            text.replace("validation = 0.2", 'validation = 0.2, splits = "random"', 1),
            tmp_path / "run",
            stores,
        )
    )
    (tmp_path / "recipe.toml").write_text(text)
    job = open_job(tmp_path / "recipe.toml", run.path, stores=stores, resume=Resume.ALWAYS)
    assert job.resumed and job.recipe.data.model_dump()["splits"] == "random"


def test_open_and_random_splits_of_images_without_such_names_are_one_store(
    images: Path, stores: Path
) -> None:
    text = greedy(images)
    at_random = text.replace("validation = 0.2", 'validation = 0.2, splits = "random"', 1)
    first, second = (open_store(recipes.parse(each, "a test"), stores) for each in (text, at_random))
    assert first.path == second.path
