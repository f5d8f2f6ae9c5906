"""The explanation of recipes leaves nothing out."""

from __future__ import annotations

from typing import Any

import pytest

from cotswold.recipe import Recipe, explain
from cotswold.recipe.kinds import sections_in
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
        "momentum = a number >= 0 and < 1; default 0.9\n    Part of the last step that is kept.\n"
        in explain()
    )
    assert "\n[[network.stacks]]  # One stack: " in explain()
    assert "field = a whole number > 0 or [height, width]; required\n" in explain()
    assert 'schedule = "constant", "linear" or "cosine"; default "cosine"\n' in explain()
    assert "threads = a whole number > 0; optional\n" in explain()
