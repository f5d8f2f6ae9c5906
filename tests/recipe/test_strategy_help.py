"""`help`, an editor and `inspect.signature` show every field of a strategy object."""

from __future__ import annotations

import inspect
import pydoc

import pytest

from cotswold.recipe.strategies import STRATEGY_OBJECTS, StrategyObject, Supervised

EACH_STRATEGY = pytest.mark.parametrize("strategy", STRATEGY_OBJECTS.values(), ids=STRATEGY_OBJECTS)


@EACH_STRATEGY
def test_help_explains_every_field_with_its_default(strategy: type[StrategyObject]) -> None:
    text = " ".join(pydoc.plain(pydoc.render_doc(strategy)).replace("|", " ").split())
    for name, field in strategy.model_fields.items():
        words = f"{name}: {' '.join((field.description or '').split())} ["
        assert words in text
        default = field.get_default(call_default_factory=True)
        assert ("optional]" if default is None else f"; default {default!r}]") in text.split(words, 1)[1]


@EACH_STRATEGY
def test_the_signature_has_every_field_by_keyword(strategy: type[StrategyObject]) -> None:
    parameters = inspect.signature(strategy).parameters
    assert list(parameters) == list(strategy.model_fields)
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_signature_has_the_types_that_a_caller_writes() -> None:
    text = str(inspect.signature(Supervised))
    assert "epochs: float = 2.0" in text
    assert "clip_norm: float | None = None" in text
    assert "betas: tuple[float, float] | None = None" in text
    assert "metrics: list[str] = []" in text
