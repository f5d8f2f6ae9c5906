"""Recipes are read strictly, and errors name the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from cotswold.errors import RecipeError
from cotswold.geometry import MapShape
from cotswold.recipe import Recipe, dump, expand, load, parse, shipped_names
from cotswold.recipe.schema import (
    GivenData,
    ImageData,
    LossObjective,
    Network,
    StackObjective,
    SupervisedTraining,
)

TEXT = """\
name = "mine"

[data]
source = "images"
size = [40, 60]

[[network.stacks]]
kernel_size = 12
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
    assert isinstance(recipe.data, ImageData) and recipe.data.size == (40, 60)
    assert (recipe.relative_rate(0), recipe.training.batch_size) == (1.0, 96)
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
    assert all(name in str(caught.value) for name in shipped_names())


def test_a_folder_and_a_file_of_another_kind_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(RecipeError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(RecipeError, match="not a text in UTF-8"):
        load(tmp_path / "image")


def test_a_mistake_in_toml_is_located() -> None:
    assert complaint(TEXT.replace("stride = 4", "stride = = 4")).startswith("mine.toml is not TOML: ")
    assert "line 9" in complaint(TEXT.replace("stride = 4", "stride = = 4"))


def test_an_unknown_key_is_located_and_the_right_one_guessed() -> None:
    assert complaint(TEXT.replace("kernel_size", "kernel_sise")) == (
        "mine.toml, line 8: network.stacks.0.kernel_sise is not a key; did you mean kernel_size? (and 1 more)"
    )


def test_an_unknown_key_like_no_other_brings_the_list() -> None:
    assert complaint(TEXT + "[price]\nzork = 1\n").endswith(
        "price.zork is not a key; known keys: hardware_dollars, rent_dollars_per_hour, max_dollars, max_hours"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.batch_size=0", "training.batch_size must be an integer > 0, not 0"),
        ("training.batch_size=1.5", "training.batch_size must be an integer > 0, not 1.5"),
        ("training.batch_size=true", "training.batch_size must be an integer > 0, not True"),
        ("training.relative_rate=inf", "training.relative_rate must be a number > 0, not inf"),
        ("training.relative_rate=fast", "training.relative_rate must be a number > 0, not 'fast'"),
        ("training.warmup=1.0", "training.warmup must be a number >= 0 and < 1, not 1.0"),
        (
            "training.schedule=step",
            'training.schedule must be "constant", "linear" or "cosine", not \'step\'',
        ),
        ("data.whiten=1", "data.whiten must be true or false, not 1"),
        ("data.include=a", "data.include must be a list of texts, not 'a'"),
        ("data.size=[1,2,3]", "data.size must be an integer > 0 or [height, width], not (1, 2, 3)"),
        (
            "network.stacks.0.kernel_size=0",
            "network.stacks.0.kernel_size must be an integer > 0 or [height, width], not 0",
        ),
        ("training=3", "training must be a table, not 3"),
        (
            "training.strategy=",
            'training.strategy is missing; it takes "greedy", "joint", "supervised", "batch" or "downpour"',
        ),
        ("data.store=here", "[data] needs either source or store; give one of them"),
        ("network.stacks=[]", "strategy greedy trains [[network.stacks]]; give at least one"),
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
            "network.stacks.0.kernel_size=50",
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
        ("training.patience=3", "training.patience belongs to strategies supervised, batch and downpour"),
        (
            "training.weight_decay=0.1",
            "training.weight_decay belongs to strategies supervised, batch and downpour; remove it for",
        ),
    ],
)
def test_what_could_have_no_good_effect_is_refused(override: str, expected: str) -> None:
    assert expected in complaint(TEXT, override)


def test_the_line_of_a_wrong_value_is_told_where_it_is_certain() -> None:
    assert complaint(TEXT.replace("stride = 4", 'stride = "4"')).startswith("mine.toml, line 9: ")
    twice = TEXT + "\n[[network.stacks]]\nkernel_size = 0\n"
    assert complaint(twice).startswith("mine.toml: network.stacks.1.kernel_size must be")


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
        ("training.relative_rate", "must have the form section.key=value"),
        (".rate=1", "must have the form section.key=value"),
        ("network.stacks.1.kernel_size=3", "'1' must be one of 0 to 0 here"),
        ("name.first=1", "names a key inside a value that is not a table"),
        ("data.size=[3", "has an invalid TOML value"),
        ("data.source=images\udcff", "not valid UTF-8, as a recipe must be; rename"),
        ("training.batch_size=1\nname='x'", "has more than one value"),
    ],
)
def test_an_override_that_means_nothing_is_quoted(override: str, expected: str) -> None:
    text = complaint(TEXT, override)
    assert repr(override) in text
    assert expected in text


def test_variables_stay_as_written_until_they_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = parse(TEXT.replace('"images"', '"${COTSWOLD_TEST}/a.zip"'))
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
    recipe = parse(TEXT.replace('"images"', '"$(touch here) {0} %s `x`"'))
    assert expand(str(recipe.data.source)) == "$(touch here) {0} %s `x`"


@pytest.mark.parametrize("name", shipped_names())
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
    assert (recipe.input, recipe.training.batch_size) == (MapShape(3, 200, 200), 96)
    assert (recipe.sparsity(0), recipe.training.strategy) == (0.1, "greedy")


def test_the_last_stack_of_the_faces_recipe_sees_the_whole_image() -> None:
    last = load("faces").stack_geometries()[-1]
    assert last.filters.grid == (1, 1)
    assert (last.filters.y.size, last.filters.x.size) == (last.input.height, last.input.width)


LABELLED = """\
name = "mine"
data = { source = "images", labels = "folders" }
network = { layers = [{ type = "linear", features = 3 }] }
training = { strategy = "supervised" }
"""
VECTORS = """\
name = "mine"
data = { source = "speech.npy", type = "vectors" }
network = { stacks = [{ kernel_size = 1, block = 1, pool = 1, norm = 1 }] }
training = { strategy = "joint" }
"""
GIVEN = """\
name = "mine"
data = { type = "dataset" }
network = { module = "mine" }
training = { strategy = "supervised" }
"""


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        (
            TEXT,
            "training.patience=3",
            "training.patience belongs to strategies supervised, batch and downpour; remove it for greedy",
        ),
        (
            TEXT,
            "training.learning_rate=3",
            "training.learning_rate belongs to strategies supervised and downpour; did you "
            "mean relative_rate?",
        ),
        (
            LABELLED,
            "training.offload=disk",
            "training.offload belongs to strategies greedy and joint; remove it for supervised",
        ),
        (
            TEXT,
            "training.patiense=3",
            "training.patiense is not a key; patience belongs to strategies supervised, batch and downpour",
        ),
        (TEXT, "training.momemtum=0.3", "training.momemtum is not a key; did you mean momentum?"),
        (
            TEXT,
            "objective.loss=squared_error",
            "objective.loss belongs to strategies supervised, batch and downpour; remove it for greedy "
            "or joint",
        ),
        (
            LABELLED,
            "objective.sparsity=0.1",
            "objective.sparsity belongs to strategies greedy and joint; remove it for supervised, "
            "batch or downpour",
        ),
        (
            LABELLED,
            "objective.loss=log",
            'objective.loss must be "cross_entropy", "squared_error", "bce_with_logits" or "custom", '
            "not 'log'",
        ),
        (VECTORS, "data.size=3", "data.size belongs to type images; remove it for vectors"),
        (VECTORS, "data.context=3", "data.context belongs to types frames and table; remove it for vectors"),
        (VECTORS, "data.type=vector", "data.type is 'vector'; did you mean vectors?"),
        (VECTORS, "data=3", "data must be a table, not 3"),
        (
            LABELLED,
            "network.layers.0.channels=3",
            "network.layers.0.channels belongs to types local and convolution; remove it for linear",
        ),
        (TEXT, "training.strategy=gready", "training.strategy is 'gready'; did you mean greedy?"),
        (LABELLED, "training.replicas=2", "training.replicas is not a key; did you mean cluster.workers?"),
        (LABELLED, "cluster.replicas=2", "cluster.replicas is not a key; did you mean workers?"),
        (LABELLED, "training.lr=0.1", "training.lr is not a key; did you mean learning_rate?"),
        (LABELLED, "training.stratagy='batch'", "training.stratagy is not a key; did you mean strategy?"),
    ],
)
def test_a_key_of_another_kind_of_table_is_told_where_it_belongs(
    text: str, override: str, expected: str
) -> None:
    assert complaint(text, override) == f"mine.toml: {expected}"


def test_a_word_that_several_fields_have_is_no_hint() -> None:
    with pytest.raises(RecipeError, match=r"training\.batch_size belongs to .*; remove it for batch"):
        load("demo", ["training.strategy=batch"])


def test_a_strategy_that_is_none_is_the_only_complaint_whatever_its_objective() -> None:
    assert complaint(LABELLED, "training.strategy=supervise", "objective.loss=squared_error") == (
        "mine.toml: training.strategy is 'supervise'; did you mean supervised?"
    )


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        (
            GIVEN,
            ["network.module="],
            'data.type = "dataset" belongs to network.module; name the module there',
        ),
        (GIVEN, ["network.backbone=run"], "network.module replaces layers and backbone"),
        (VECTORS, ["network.module=mine"], "layers, backbone and module belong to strategy supervised"),
        (VECTORS, ["data={type='dataset'}"], "stacks learn from images, vectors or frames"),
        (LABELLED, ["objective.loss=custom"], "belongs to network.module; name a loss"),
        (
            LABELLED,
            ["data={type='vectors', source='a'}"],
            "strategy supervised needs labels; set data.labels to file",
        ),
        (
            LABELLED,
            ["data={type='frames', source='a'}"],
            "strategy supervised needs labels; set data.labels to folders or file",
        ),
        (
            LABELLED,
            ["data={source='rings:500'}"],
            "strategy supervised needs labels; set data.labels to file",
        ),
        (VECTORS, ["data.store=here"], "[data] needs either source or store"),
    ],
)
def test_tables_that_do_not_go_together_are_refused_with_the_remedy(
    text: str, overrides: list[str], expected: str
) -> None:
    assert expected in complaint(text, *overrides)


def test_a_recipe_is_made_in_python_of_the_tables_alone() -> None:
    recipe = Recipe(
        name="mine", data=GivenData(), network=Network(module="mine"), training=SupervisedTraining()
    )
    assert recipe == parse(GIVEN)
    with pytest.raises(ValidationError, match="is not an objective of strategy supervised"):
        recipe.model_validate({**dict(recipe), "objective": StackObjective()})


def test_the_objective_is_that_of_the_strategy_where_nothing_is_said() -> None:
    assert parse(LABELLED).objective == LossObjective()
    assert parse(VECTORS).objective == StackObjective()
    assert parse(GIVEN, overrides=["objective.loss=custom"]).loss == "custom"


def test_an_optimiser_of_a_program_is_named_by_runs_alone() -> None:
    with pytest.raises(RecipeError, match=r'training\.optimizer = "custom" is written by runs of a Python'):
        parse(LABELLED, overrides=["training.optimizer=custom"])
    with pytest.raises(RecipeError, match=r'training\.optimizer = "custom" is written by runs of a Python'):
        parse(LABELLED.replace('"supervised"', '"supervised", optimizer = "custom"'))
    recipe = parse(LABELLED, overrides=["training.learning_rate=0.3"])
    own = recipe.model_copy(update={"training": recipe.training.model_copy(update={"optimizer": "custom"})})
    written = dump(own)
    assert 'optimizer = "custom"' in written and "learning_rate" not in written
    assert dump(parse(written)) == written
    with pytest.raises(RecipeError, match="Python program, which has its own momentum; remove momentum"):
        parse(written, overrides=["training.momentum=0.5"])


def test_a_vector_is_a_map_of_one_position_and_a_frame_brings_its_context() -> None:
    recipe = parse(VECTORS, overrides=["data.features=40"])
    assert recipe.input == MapShape(40, 1, 1)
    assert recipe.stack_geometries()[0].filters.parameters == 40 * 8
    frames = parse(VECTORS, overrides=["data.features=40", "data.type=frames", "data.context=5"])
    assert frames.input == MapShape(440, 1, 1)


def test_a_size_that_only_the_data_know_is_asked_for() -> None:
    recipe = parse(VECTORS)
    with pytest.raises(RecipeError, match=r"give data\.features: the number of values per sample"):
        recipe.stack_geometries()


def test_a_geometry_that_does_not_fit_vectors_names_the_remedy() -> None:
    overrides = ["data.features=40", "network.stacks.0.norm=5"]
    assert "a window of 5 does not fit a map of 8 x 1 x 1; use a smaller window" in complaint(
        VECTORS, *overrides
    )


@pytest.mark.parametrize("word", ["gray", "grey"])
def test_grey_is_spelt_either_way(word: str) -> None:
    assert parse(TEXT, overrides=[f"data.colour={word}"]).input.channels == 1


def test_same_padding_gives_a_block_for_every_stride_of_the_map() -> None:
    overrides = ["network.stacks.0.padding=same", "network.stacks.0.stride=3"]
    (stack,) = parse(TEXT, overrides=overrides).stack_geometries()
    assert stack.filters.grid == (14, 20)  # of 40 x 60
    assert (stack.filters.y.pad_before, stack.filters.y.pad_after) == (5, 6)


def test_padding_takes_a_number_or_that_word() -> None:
    assert complaint(TEXT, "network.stacks.0.padding=valid").endswith(
        "network.stacks.0.padding must be an integer >= 0 or \"same\", not 'valid'"
    )


def test_a_recipe_made_in_python_is_refused_in_the_words_used_of_a_file() -> None:
    with pytest.raises(RecipeError, match=r"^Recipe\(\): .* is missing"):
        Recipe(name="x")
    data, training = {"source": "builtin:demo"}, {"strategy": "supervised", "epoch": 3}
    with pytest.raises(RecipeError, match=r"^Recipe\(\): training\.epoch is not a key; did you mean epochs"):
        Recipe(name="x", data=data, network={"layers": []}, training=training)


def test_a_field_that_is_set_says_that_recipes_are_frozen_and_what_to_do() -> None:
    recipe = load("demo")
    with pytest.raises(RecipeError, match=r"a Recipe is frozen; pass overrides= .* model_copy\(update="):
        recipe.name = "x"
    with pytest.raises(RecipeError, match="cannot set epochs"):
        recipe.training.epochs = 3.0
    assert recipe.model_copy(update={"name": "x"}).name == "x" and recipe == load("demo")


def test_notices_are_told_of_a_recipe_that_holds_alone() -> None:
    told: list[str] = []
    own = TEXT.replace("stride = 4", "stride = 4\nepochs = 1")
    parse(own, overrides=["training.epochs=3"], tell=told.append)
    assert len(told) == 1 and "training.epochs" in told[0]
    told.clear()
    with pytest.raises(RecipeError, match="epoch is not a key"):
        parse(own, overrides=["training.epochs=3", "training.epoch=3"], tell=told.append)
    assert told == []
    with pytest.raises(RecipeError, match=r"training\.keep is not a key; did you mean checkpoints_kept\?"):
        parse(TEXT, overrides=["training.keep=3"])
