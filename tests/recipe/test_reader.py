"""Recipes are read strictly, and complaints say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.errors import RecipeError
from cotswold.recipe import Recipe, expand, load, parse, shipped

TEXT = """\
name = "mine"

[data]
source = "pictures"
size = [40, 60]

[[network.stacks]]
field = 12
stride = 4

[training]
strategy = "greedy"
relative_rate = 1
"""


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse(text, "mine.toml", overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_is_read_with_the_defaults_of_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    recipe = load(path)
    assert (recipe.data.size, recipe.training.relative_rate, recipe.training.batch_size) == (
        (40, 60),
        1.0,
        96,
    )
    assert recipe == load(str(path))


@pytest.mark.parametrize("name", ["demo", "demo.toml"])
def test_a_shipped_recipe_is_loaded_by_its_name(name: str) -> None:
    assert load(name).name == "demo"


def test_a_file_goes_before_the_shipped_recipe_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    assert load("demo").name == "mine"


def test_a_missing_file_lists_the_shipped_recipes_and_guesses() -> None:
    with pytest.raises(RecipeError, match=r"'coates2013-12b'; did you mean coates2013-11b\?") as caught:
        load("coates2013-12b")
    assert all(name in str(caught.value) for name in shipped())


def test_a_folder_and_a_file_of_another_kind_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(RecipeError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(RecipeError, match="not a text in UTF-8"):
        load(tmp_path / "picture")


def test_a_mistake_in_toml_is_located() -> None:
    assert complaint(TEXT.replace("stride = 4", "stride = = 4")).startswith("mine.toml is not TOML: ")
    assert "line 9" in complaint(TEXT.replace("stride = 4", "stride = = 4"))


def test_an_unknown_key_is_located_and_the_right_one_guessed() -> None:
    assert complaint(TEXT.replace("field", "feild")) == (
        "mine.toml, line 8: network.stacks.0.feild is not a key; did you mean field? (and 1 more)"
    )


def test_an_unknown_key_like_no_other_brings_the_list() -> None:
    assert complaint(TEXT + "[price]\nzork = 1\n").endswith(
        "price.zork is not a key; known here are hardware_dollars, rent_dollars_per_hour"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.batch_size=0", "training.batch_size must be a whole number > 0, not 0"),
        ("training.batch_size=1.5", "training.batch_size must be a whole number > 0, not 1.5"),
        ("training.batch_size=true", "training.batch_size must be a whole number > 0, not True"),
        ("training.relative_rate=inf", "training.relative_rate must be a number > 0, not inf"),
        ("training.relative_rate=fast", "training.relative_rate must be a number > 0, not 'fast'"),
        ("training.warmup=1.0", "training.warmup must be a number >= 0 and < 1, not 1.0"),
        (
            "training.schedule=step",
            'training.schedule must be "constant", "linear" or "cosine", not \'step\'',
        ),
        ("data.whiten=1", "data.whiten must be true or false, not 1"),
        ("data.include=a", "data.include must be a list of texts, not 'a'"),
        ("data.size=[1,2,3]", "data.size must be a whole number > 0 or [height, width], not (1, 2, 3)"),
        (
            "network.stacks.0.field=0",
            "network.stacks.0.field must be a whole number > 0 or [height, width], not 0",
        ),
        ("training=3", "training must be a table, not 3"),
        ("training.strategy=", 'training.strategy is missing; it takes "greedy", "joint" or "supervised"'),
        ("data.store=here", "[data] needs either source or store; give one of them"),
        ("network.stacks=[]", "strategy greedy learns [[network.stacks]]; give at least one"),
        ("network.layers=[{type='lokal'}]", "network.layers.0.type is 'lokal'; did you mean local?"),
        (
            "network.layers=[{features=3}]",
            "network.layers.0.type is missing; "
            'it takes "local", "convolution", "linear", "pool", "normalisation", "dropout", "relu", '
            '"tanh" or "sigmoid"',
        ),
        (
            "network.layers=[{type='linear', features=3, feature=3}]",
            "network.layers.0.feature is not a key; did you mean features?",
        ),
        (
            "network.stacks.0.field=50",
            "network.stacks.0: a receptive field 50 high does not fit a map 40 high with padding 0 and 0; "
            "use a smaller field or a larger map",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(override: str, expected: str) -> None:
    assert complaint(TEXT, override) == f"mine.toml: {expected}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("name=../mine", "'../mine'"),
        ("name=/tmp/mine", "'/tmp/mine'"),
        ("name=''", "''"),
        ("training.patience=3", "training.patience belongs to strategy supervised"),
        (
            "training.weight_decay=0.1",
            "training.weight_decay belongs to strategy supervised; take it out for",
        ),
    ],
)
def test_what_could_have_no_good_effect_is_refused(override: str, expected: str) -> None:
    assert expected in complaint(TEXT, override)


def test_the_line_of_a_wrong_value_is_told_where_it_is_certain() -> None:
    assert complaint(TEXT.replace("stride = 4", 'stride = "4"')).startswith("mine.toml, line 9: ")
    twice = TEXT + "\n[[network.stacks]]\nfield = 0\n"
    assert complaint(twice).startswith("mine.toml: network.stacks.1.field must be")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.relative_rate=0.5", 0.5),
        ("training.strategy=joint", "joint"),
        ('training.strategy="joint"', "joint"),
        ("training.device=cuda:0", "cuda:0"),
        ("network.stacks.0.block=[2, 3]", (2, 3)),
        ("price.rent_dollars_per_hour=2", 2.0),
        ("data.exclude=['Faces/*']", ["Faces/*"]),
        ("data.size=", 200),
    ],
)
def test_an_override_replaces_a_value_and_nothing_takes_it_away(override: str, expected: object) -> None:
    node: object = parse(TEXT, overrides=[override])
    for key in override.partition("=")[0].split("."):
        node = node[int(key)] if isinstance(node, list) else getattr(node, key)
    assert node == expected


def test_later_overrides_win() -> None:
    assert parse(TEXT, overrides=["training.batch_size=1", "training.batch_size=2"]).training.batch_size == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.relative_rate", "not of the form section.key=value"),
        (".rate=1", "not of the form section.key=value"),
        ("network.stacks.1.field=3", "'1' must be one of 0 to 0 here"),
        ("name.first=1", "goes through a value that has nothing inside"),
        ("data.size=[3", "does not hold a TOML value"),
        ("training.batch_size=1\nname='x'", "holds more than one value"),
    ],
)
def test_an_override_that_means_nothing_is_quoted(override: str, expected: str) -> None:
    text = complaint(TEXT, override)
    assert repr(override) in text
    assert expected in text


def test_variables_stay_as_written_until_they_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse(TEXT.replace('"pictures"', '"${COTSWOLD_TEST}/a.zip"'))
    assert recipe.data.source == "${COTSWOLD_TEST}/a.zip"
    monkeypatch.setenv("COTSWOLD_TEST", "/data")
    assert expand(recipe.data.source) == "/data/a.zip"
    assert expand("builtin:demo") == "builtin:demo"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("COTSWOLD_TEST", raising=False)
    if value is not None:
        monkeypatch.setenv("COTSWOLD_TEST", value)
    with pytest.raises(RecipeError, match="environment variable COTSWOLD_TEST, which is not set"):
        expand("${COTSWOLD_TEST}/a.zip")


def test_nothing_in_a_recipe_is_executed() -> None:
    recipe = parse(TEXT.replace('"pictures"', '"$(touch here) {0} %s `x`"'))
    assert expand(str(recipe.data.source)) == "$(touch here) {0} %s `x`"


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_is_sound_and_bears_its_own_name(name: str) -> None:
    assert load(name).name == name


def weights(recipe: Recipe) -> list[int]:
    return [stack.filters.parameters for stack in recipe.stack_geometries()]


def test_the_papers_small_network_has_its_1_8_billion_weights() -> None:
    recipe = load("coates2013-1.8b")
    assert [stack.filters.grid for stack in recipe.stack_geometries()] == [(48, 48), (44, 44), (40, 40)]
    assert sum(weights(recipe)) == 1_802_240_000


def test_the_papers_large_network_has_its_11_2_billion_weights() -> None:
    recipe = load("coates2013-11b")
    assert weights(recipe) == [731_289_600, 6_879_707_136, 3_588_489_216]
    assert sum(weights(recipe)) == 11_199_485_952


@pytest.mark.parametrize("name", ["coates2013-1.8b", "coates2013-11b"])
def test_the_papers_networks_are_trained_as_the_paper_says(name: str) -> None:
    recipe = load(name)
    assert (recipe.data.size, recipe.data.colour, recipe.training.batch_size) == (200, "rgb", 96)
    assert (recipe.objective.sparsity, recipe.training.strategy) == (0.1, "greedy")


def test_the_last_stack_of_the_faces_recipe_sees_the_whole_picture() -> None:
    last = load("faces").stack_geometries()[-1]
    assert last.filters.grid == (1, 1)
    assert (last.filters.y.size, last.filters.x.size) == (last.input.height, last.input.width)
