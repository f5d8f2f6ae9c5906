"""Any contents of a recipe or an override give a recipe or one sentence, quickly."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotswold.errors import FormatError, RecipeError
from cotswold.recipe import Recipe, dump, load, parse, shipped_names

SECONDS_MOST = 20.0
"""Most seconds for one recipe; each takes milliseconds, but the machine may be busy."""
STACK = """
name = "a"
[data]
source = "images"
[[network.stacks]]
kernel_size = 10
[training]
strategy = "greedy"
"""


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse(text, overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize("depth", [20, 300, 5000, 40_000])
def test_lists_and_tables_that_nest_too_deeply_are_refused(depth: int) -> None:
    assert (
        complaint(f"{STACK}x = {'[' * depth}{']' * depth}") == "recipe is not a recipe: it nests too deeply"
    )
    assert "it nests too deeply" in complaint(f"{STACK}x = {'{a = ' * depth}1{'}' * depth}")


@pytest.mark.parametrize("depth", [20, 300, 5000])
def test_an_override_that_nests_too_deeply_is_refused(depth: int) -> None:
    assert "it nests too deeply" in complaint(STACK, f"training.relative_rate={'[' * depth}{']' * depth}")
    assert "nests too deeply" in complaint(STACK, f"training.relative_rate.{'a.' * depth}b=1")


def test_a_key_of_very_many_names_is_refused_at_once() -> None:
    begun = time.monotonic()
    assert "too long" in complaint(f"{STACK}{'a.' * 100_000}b = 1")
    assert "too long" in complaint(STACK, f"training.relative_rate={{{'a.' * 100_000}b = 1}}")
    assert time.monotonic() - begun < SECONDS_MOST


def test_a_file_of_any_size_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is filled
    begun = time.monotonic()
    with pytest.raises(RecipeError, match="too long; at most 256 kB"):
        load(path)
    assert time.monotonic() - begun < SECONDS_MOST


@pytest.mark.parametrize("number", ["1" * 5000, "0x" + "1" * 50_000, "1" + "0" * 400, "1e999", "-1e999"])
@pytest.mark.parametrize(
    "field", ["training.relative_rate", "training.batch_size", "data.size", "training.seed"]
)
def test_a_number_of_any_length_is_answered_in_one_sentence(field: str, number: str) -> None:
    assert len(complaint(STACK, f"{field}={number}")) < 400


@pytest.mark.parametrize(
    ("override", "most"),
    [
        ("data.size=1000000000", "65,536"),
        ("data.size=[65537, 1]", "65,536"),
        ("data.limit=10000000000000", "1,099,511,627,776"),
        ("network.stacks.0.channels=10000000000", "1,073,741,824"),
        ("training.batch_size=1000001", "1,000,000"),
        ("training.epochs=1e7", "1,000,000"),
        ("training.relative_rate=1e31", "1e+30"),
        ("training.seed=9223372036854775808", "9,223,372,036,854,775,807"),
        ("training.threads=4097", "4,096"),
        ("training.checkpoint_minutes=1e9", "1,000,000"),
        ("mesh.timeout=1e9", "1,000,000"),
        (f"data.source={'p' * 5000}", "4,096 characters"),
        (f"data.include={['a'] * 10_001}", "10,000 items"),
    ],
)
def test_a_value_beyond_any_machine_is_named_with_the_most_that_may_be(override: str, most: str) -> None:
    field = override.partition("=")[0]
    found = complaint(STACK, override)
    assert found.startswith(f"recipe: {field} cannot be ")
    assert re.sub(r"\.0", "", most) in found.replace(".0;", ";") and len(found) < 300


def test_a_text_with_nul_is_refused_for_no_file_is_called_so() -> None:
    assert complaint(STACK, r'data.source="a\u0000b"') == (
        r"recipe: data.source cannot be 'a\x00b'; it takes no NUL"
    )


def test_a_stack_that_no_machine_holds_is_refused() -> None:
    overrides = ("data.size=65536", "network.stacks.0.block=1000", "network.stacks.0.channels=1000000")
    assert re.search(
        r"network.stacks.0: it would have .* more than any machine holds", complaint(STACK, *overrides)
    )


@pytest.mark.parametrize("size", [200, 60_000])
def test_flops_of_a_stack_are_counted_without_walking_over_its_units(size: int) -> None:
    begun = time.monotonic()
    (stack,) = parse(STACK, overrides=[f"data.size={size}"]).stack_geometries()
    assert stack.forward_flops == 2 * (100 * (size - 9) ** 2) * 3 * 128
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    "override",
    [
        f"training.{'k' * 2000}=1",
        f"{'k' * 2000}",
        f"training.strategy={'k' * 2000}",
        f"network.stacks.{'1' * 2000}.kernel_size=3",
        f"network.layers=[{{type = '{'k' * 2000}'}}]",
        f"name={'k' * 2000}",
        f"mesh.grid={'k' * 2000}",
    ],
)
def test_long_words_of_the_user_are_shortened_where_they_are_repeated(override: str) -> None:
    assert len(complaint(STACK, override)) < 400


def outcome(text: str, overrides: Sequence[str] = ()) -> Recipe | str:
    """Return the recipe, or the sentence that refuses it; other results are failures."""
    try:
        return parse(text, overrides=overrides)
    except (RecipeError, FormatError) as error:
        return str(error)


texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "none", "auto", "2x2", "1000000x1000000", "${HOME}", "/dev/zero", "cuda:99", "x" * 5000]
    ),
)
scalars = st.one_of(
    texts,
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63, 2**64, 10**18, 10**400, -(10**30), nan, inf, -inf, 1e308, 5e-324, -0.0]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a recipe's raw values."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """Draw a shipped recipe, as text, with some fields replaced, removed, added or repeated."""
    recipe = tomllib.loads(dump(load(draw(st.sampled_from(shipped_names())))))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(places(recipe))))
        holder: Any = recipe
        for key in way:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "repeat"])):
            case "replace":
                holder[last] = draw(values)
            case "remove":
                del holder[last]
            case "add" if isinstance(holder, dict):
                holder[
                    draw(st.sampled_from(["__class__", "", "a.b", "rate", "type", "strategy", "x" * 1000]))
                ] = draw(values)
            case "repeat" if isinstance(holder, list):
                holder.extend(holder[-1:] * draw(st.sampled_from([1, 50, 2000])))
    return "\n".join(f"{written(key)} = {written(value)}" for key, value in recipe.items())


def written(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=True) if value.isascii() else json.dumps("é☃")
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return "{" + ", ".join(f"{written(key)} = {written(inner)}" for key, inner in value.items()) + "}"
        case _:
            return repr(value)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(spoilt())
def test_any_recipe_is_read_or_refused_in_one_sentence_within_a_bounded_time(text: str) -> None:
    begun = time.monotonic()
    found = outcome(text)
    if isinstance(found, Recipe) and found.input_known:
        assert all(stack.update_flops > 0 for stack in found.stack_geometries())
    else:
        assert isinstance(found, Recipe) or len(found) < 1000
    assert time.monotonic() - begun < SECONDS_MOST


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(max_size=40)
        | st.builds(
            lambda key, value: f"{key}={value}",
            st.sampled_from(
                [
                    "training.relative_rate",
                    "data.size",
                    "network.stacks.0.kernel_size",
                    "network.layers",
                    "mesh.grid",
                    "training",
                ]
            ),
            st.text(max_size=30),
        ),
        max_size=3,
    )
)
def test_any_overrides_are_taken_or_refused_in_one_sentence(overrides: list[str]) -> None:
    found = outcome(STACK, overrides)
    assert isinstance(found, Recipe) or len(found) < 1000
