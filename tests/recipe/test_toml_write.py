"""A dumped recipe reads back as the same recipe."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotswold.recipe import Recipe, commented, dump, load, parse, shipped_names
from cotswold.recipe.schema import (
    Evaluation,
    FrameData,
    GivenData,
    GreedyTraining,
    ImageData,
    JointTraining,
    Linear,
    LossObjective,
    Network,
    Price,
    Section,
    Stack,
    StackObjective,
    SupervisedTraining,
    VectorData,
)

AWKWARD = r'"\t\n\"\\\u007f\u0080\u2028😀"'

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
pixels = st.integers(1, 1 << 16)
rates = st.floats(min_value=0, exclude_min=True, max_value=1e6)
pairs = st.one_of(pixels, st.tuples(pixels, pixels))

stacks = st.builds(
    Stack,
    kernel_size=pairs,
    stride=pairs,
    padding=st.integers(0, 9) | st.just("same"),
    block=pairs,
    pool_padding=st.sampled_from(["valid", "same"]),
    sparsity=st.none() | rates,
    epochs=st.none() | rates,
)
about_files: dict[str, Any] = {"source": st.none(), "store": texts}
samples = st.lists(texts, max_size=3)
sourced = st.one_of(
    st.builds(ImageData, **about_files, type=st.just("images"), include=samples, size=pairs),
    st.builds(
        VectorData, **about_files, type=st.just("vectors"), features=st.none() | pixels, limit=st.none()
    ),
    st.builds(FrameData, **about_files, type=st.just("frames"), include=samples, features=st.none()),
)
given_data = st.builds(GivenData, type=st.just("dataset"), samples=st.none() | pixels)
settings: dict[str, Any] = {"threads": st.none() | st.integers(1, 4096), "device": texts}
common: dict[str, Any] = {
    "name": st.from_regex(r"\w[\w .+-]*", fullmatch=True).filter(lambda name: len(name.encode()) <= 240),
    "evaluate": st.lists(st.builds(Evaluation, name=texts, positives=texts, negatives=texts), max_size=2),
    "price": st.builds(Price, hardware_dollars=st.none() | rates, rent_dollars_per_hour=st.none()),
}
of_stacks = st.builds(
    Recipe,
    **common,
    data=sourced,
    network=st.builds(
        Network,
        stacks=st.lists(stacks, min_size=1, max_size=3),
        layers=st.just([]),
        backbone=st.none(),
        finetune=st.just(False),
        module=st.none(),
    ),
    objective=st.builds(StackObjective, sparsity=rates, epsilon=rates),
    training=st.one_of(
        st.builds(GreedyTraining, strategy=st.just("greedy"), relative_rate=rates, **settings),
        st.builds(JointTraining, strategy=st.just("joint"), relative_rate=rates, **settings),
    ),
)
supervised: dict[str, Any] = {
    **common,
    "objective": st.builds(
        LossObjective, loss=st.sampled_from(["cross_entropy", "squared_error", "bce_with_logits"])
    ),
    "training": st.builds(
        SupervisedTraining, strategy=st.just("supervised"), learning_rate=rates, **settings
    ),
}
linear = st.builds(Linear, type=st.just("linear"), features=pixels)
of_layers = st.builds(
    Recipe,
    **supervised,
    data=sourced,
    network=st.builds(
        Network,
        stacks=st.just([]),
        backbone=st.none(),
        finetune=st.just(False),
        module=st.none(),
        layers=st.lists(linear, max_size=2),
    ),
)
of_modules = st.builds(
    Recipe,
    **supervised,
    data=given_data,
    network=st.builds(
        Network,
        stacks=st.just([]),
        backbone=st.none(),
        finetune=st.just(False),
        module=texts,
        layers=st.just([]),
    ),
)
recipes = of_stacks | of_layers | of_modules


@given(recipes)
@example(load("demo", [f"data.source={AWKWARD}"]))
def test_any_recipe_survives_being_written_and_read(recipe: Recipe) -> None:
    assert parse(dump(recipe)) == recipe


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_survives_being_written_and_read(name: str) -> None:
    assert parse(dump(load(name))) == load(name)


def test_defaults_are_written_out_so_that_a_run_does_not_change_when_they_do() -> None:
    written = tomllib.loads(dump(load("demo")))
    assert written["training"]["momentum"] == 0.9
    assert written["network"]["stacks"][0]["padding"] == 0


@given(recipes)
def test_any_recipe_survives_being_shown_with_comments(recipe: Recipe) -> None:
    assert parse(commented(recipe)) == recipe


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_is_shown_with_the_meaning_of_every_field(name: str) -> None:
    recipe = load(name)
    shown = commented(recipe)
    assert parse(shown) == recipe
    words = " ".join(line.removeprefix("# ") for line in shown.splitlines())
    tables: list[Section] = [recipe.data, recipe.network, recipe.objective, recipe.training, recipe.mesh]
    for table in [*tables, recipe.price, *recipe.network.stacks, *recipe.network.layers]:
        for field, about in type(table).model_fields.items():
            assert " ".join(str(about.description).split()) in words
            if getattr(table, field) is None:
                assert f"# {field} =   # not set; " in shown
    assert max(map(len, shown.splitlines())) <= 110


def test_what_is_not_set_can_be_filled_in_where_it_stands() -> None:
    shown = commented(load("demo"))
    assert "# relative_rate =   # not set; a number > 0\n" in shown
    recipe = parse(shown.replace("# threads =   #", "threads = 3 #"))
    assert recipe.training.threads == 3
