"""The explanation of recipes is complete."""

from __future__ import annotations

from typing import Any

import pytest

from cotswold.errors import RecipeError
from cotswold.recipe import Recipe, explain
from cotswold.recipe.field_types import sections_in
from cotswold.recipe.schema import Section


def every_section(section: type[Section]) -> list[type[Section]]:
    below: list[Any] = [
        each for field in section.model_fields.values() for each in sections_in(field.annotation)
    ]
    return [section, *(deeper for each in below for deeper in every_section(each))]


@pytest.mark.parametrize("section", every_section(Recipe), ids=lambda section: section.__name__)
def test_every_field_of_every_table_has_a_description(section: type[Section]) -> None:
    assert section.__doc__
    assert {name for name, field in section.model_fields.items() if not field.description} == set()


def test_every_field_is_explained_with_its_kind_default_and_meaning() -> None:
    words = " ".join(explain().split())
    for section in every_section(Recipe):
        for name, field in section.model_fields.items():
            if not sections_in(field.annotation):
                assert f" {name} = " in f" {words}"
                assert " ".join(str(field.description).split()) in words


def test_the_form_of_an_explanation_is_this() -> None:
    assert (
        "momentum = a number >= 0 and < 1; default 0.9\n    Fraction of the last step that is kept.\n"
        in explain()
    )
    assert "\n[[network.stacks]]  # One stack: " in explain()
    assert "kernel_size = an integer > 0 or [height, width]; required\n" in explain()
    assert 'schedule = "constant", "linear" or "cosine"; default "cosine"\n' in explain()
    assert "threads = an integer > 0; optional\n" in explain()


@pytest.mark.parametrize(
    ("word", "headings"),
    [
        ("mesh", ["[mesh]  # Partition of the"]),
        ("network", ["[network]", "[[network.stacks]]", '[[network.layers]]  # type = "local": ']),
        ("network.stacks", ["[[network.stacks]]"]),
        ("stacks", ["[[network.stacks]]"]),
        (
            "supervised",
            [
                '[objective]  # strategy = "supervised", "batch" or "downpour": ',
                '[training]  # strategy = "supervised": ',
            ],
        ),
        ("vectors", ['[data]  # type = "vectors": ']),
        ("context", ['[data]  # type = "frames": ']),
        ("training.relative_rate", ['[training]  # strategy = "greedy": ']),
        ("relative_rate", ["[[network.stacks]]", '[training]  # strategy = "greedy": ']),
        ("name", ["name = ", "[[evaluate]]"]),
    ],
)
def test_a_word_chooses_a_table_a_kind_or_a_field(word: str, headings: list[str]) -> None:
    found = explain(word)
    at = [found.find(heading) for heading in headings]
    assert at == sorted(at) and at[0] == 0


def test_a_field_that_is_asked_for_comes_alone_and_a_strategy_whole() -> None:
    assert explain("momentum").count(" = ") == 7  # four strategies; of stacks, layers, replicas
    assert "batch_size = an integer > 0; default 96\n" in explain("supervised")
    assert "relative_rate = " not in explain("supervised")


def test_a_field_names_every_table_that_has_it() -> None:
    found = explain("batch_size")
    for strategy in ("greedy", "joint", "supervised", "downpour"):
        assert f'[training]  # strategy = "{strategy}": ' in found
    assert found.count('batch_size: as for "greedy"\n') == 2


def test_what_two_strategies_share_is_explained_once() -> None:
    found = explain("training")
    assert found.count("seed = ") == 1
    assert '[training]  # strategy = "joint": ' in found and ': as for "greedy"\n' in found


def test_a_word_that_is_nothing_brings_the_one_that_is_like_it() -> None:
    with pytest.raises(RecipeError, match=r"'stirde' is not a table, strategy, type or field .*mean stride"):
        explain("stirde")
