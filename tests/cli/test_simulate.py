"""`cotswold simulate`: its tables, its JSON, its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold
from tests.support.training.small_recipes import draw_labelled

from cotswold.cli.support.tables import table
from cotswold.recipe import load

SMALL = ("--set", "training.batch_size=8")


def test_the_list_names_shipped_clusters_and_their_devices() -> None:
    said = cotswold("simulate", "--list")
    assert said.status == 0
    assert "coates2013: 16 x 4 NVIDIA GeForce GTX 680" in said.out


def test_every_stack_of_greedy_training_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    said = cotswold("simulate", "coates2013", "coates2013-11b", "--grid", "8x8", *SMALL)
    assert said.status == 0, said.err
    first = said.out.splitlines()
    assert "coates2013-11b, greedy, batches of 8, on coates2013" in first[0]
    assert sum(line.startswith("│  8x8 │") for line in first) == 6  # both tables


def test_json_has_every_number_of_ranks_and_the_bytes() -> None:
    words = ("--ranks", "1,4", "--set", "training.strategy=joint", "--json")
    said = cotswold("simulate", "coates2013", "coates2013-1.8b", *words)
    one, four = json.loads(said.out)["updates"]
    assert (one["grid"], one["wire_bytes"], one["parameters"]) == ("1x1", 0, 1_802_240_000)
    assert four["ranks"] == 4 and four["wire_bytes"] > 0 and not four["network_bytes"]


def test_data_that_are_not_at_hand_can_be_said_in_numbers() -> None:
    said = cotswold("simulate", "bunyip2000", "bunyip-japanese-ocr", "--ranks", "2")
    assert said.status == 2 and "--samples and --outputs" in said.error
    printed = cotswold("simulate", "--help").out.replace("\\\n", "")
    (example,) = (line for line in printed.split("\n") if "bunyip2000" in line)
    words = [word if word != "24,96,194" else "2" for word in example.split()]
    assert words[:2] == ["cotswold", "simulate"] and cotswold(*words[1:]).status == 0


EVALUATIONS = ("simulate", "bunyip2000", "bunyip-japanese-ocr", "--samples", "9264000", "--outputs", "3203")


def test_a_recipe_of_whole_sets_has_a_line_for_each_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "180")
    said = cotswold(*EVALUATIONS, "--ranks", "2,6")
    assert said.status == 0, said.err
    assert "bunyip-japanese-ocr, batch, 9,264,000 samples, 3,203 outputs, on bunyip2000" in said.out
    assert sum(line.startswith(("│       2 │", "│       6 │")) for line in said.out.splitlines()) == 4
    assert "* more than the memory" in said.out  # nine million samples on one node or three


def test_json_of_evaluations_has_time_bytes_rates_and_cost() -> None:
    words = ("--ranks", "6", "--set", "cluster.point_transfer=bunyip", "--json")
    said = json.loads(cotswold(*EVALUATIONS, *words).out)
    (found,) = said["evaluations"]
    assert said["samples"] == 9_264_000 and found["workers"] == 6 and found["hosts"] == 3
    assert found["flops"] == pytest.approx(0.1 * 92.6e12, rel=0.01)
    assert found["wire_bytes"] == (2 * 5 + 2) * 4 * found["parameters"]
    bought = 3 * 1555.8
    assert found["cents_per_mflops"] == pytest.approx(100 * bought / (found["flops_per_second"] / 1e6))
    assert found["reduction"] and found["dollars_per_thousand_evaluations"] is None


def test_patterns_and_outputs_are_those_of_the_data_where_nothing_is_said(tmp_path: Path) -> None:
    import numpy as np

    rows = np.random.default_rng(0).random((300, 7), dtype=np.float32)
    np.savez(tmp_path / "digits.npz", x=rows, labels=np.arange(300) % 5)
    recipe = tmp_path / "digits.toml"
    recipe.write_text(
        f'name = "digits"\n[data]\ntype = "vectors"\nsource = "{tmp_path}/digits.npz"\nlabels = "file"\n'
        'validation = 0.1\n[[network.layers]]\ntype = "linear"\nfeatures = 3\n[[network.layers]]\n'
        'type = "tanh"\n[training]\nstrategy = "batch"\n'
    )
    said = cotswold("simulate", "core", recipe, "--json")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert (found["samples"], found["outputs"]) == (270, 5)
    assert found["evaluations"][0]["parameters"] == 7 * 3 + 3 + 3 * 5 + 5


def test_what_does_not_fit_the_memory_is_marked() -> None:
    said = cotswold("simulate", "coates2013", "coates2013-11b", "--grid", "1x1")
    assert "* more than 4 GB of a device" in said.out


def test_a_price_gives_dollars() -> None:
    said = cotswold("simulate", "h100-rack", "coates2013-1.8b", "--grid", "2x4", "--json")
    updates = json.loads(said.out)["updates"]
    for each in updates:
        assert each["dollars_per_thousand_updates"] == pytest.approx(1000 * each["seconds"] * 24 / 3600)
        assert each["cents_per_mflops"] is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "simulate needs a cluster and a recipe"),
        (("coates2013",), "simulate needs a cluster and a recipe"),
        (("coates", "demo"), "no cluster file 'coates'"),
        (("coates2013", "no-recipe"), "no recipe file 'no-recipe'"),
        (("coates2013", "cifar10", "--set", "network.backbone=run"), "builds on the stacks of a run"),
        (("coates2013", "demo", "--ranks", "four"), "--ranks must be a number of ranks, as in 4"),
        (("coates2013", "demo", "--ranks", "0"), "--ranks must be a number of ranks, as in 4"),
        (("coates2013", "demo", "--ranks", "4", "--grid", "2x2"), "omit ranks"),
        (("coates2013", "demo", "--grid", "2by2"), "a grid must be rows x columns of ranks"),
        (("coates2013", "demo", "--samples", "9"), "--samples and --outputs are for strategy batch"),
        ((*EVALUATIONS[1:], "--grid", "2x2"), "strategy batch has workers instead of a grid"),
        ((*EVALUATIONS[1:], "--ranks", "999"), "give the cluster more hosts"),
        (
            (*EVALUATIONS[1:4], "0", *EVALUATIONS[5:], "--ranks", "2"),
            "samples and outputs must be at least 1",
        ),
    ],
)
def test_a_mistake_is_said_in_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    said = cotswold("simulate", *words)
    assert said.status == 2
    assert sentence in said.error


def test_a_cluster_file_of_ones_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nhost = 1\n')
    said = cotswold("simulate", file, "demo")
    assert said.error.startswith(f"{file}, line 2: host is not a key; did you mean hosts?")


def test_a_store_brings_its_own_size(tmp_path: Path) -> None:
    draw_labelled(tmp_path / "images", 6)
    store = tmp_path / "store"
    assert cotswold("prepare", tmp_path / "images", store, "--size", "56").status == 0
    words = ("--set", "data.source=", "--set", f"data.store={store}", "--grid", "1x1", "--json")
    said = cotswold("simulate", "coates2013", "demo", *words)
    assert said.status == 0, said.err
    stacks = load("demo", ["data.size=56", "data.colour=rgb"]).stack_geometries()
    found = [update["parameters"] for update in json.loads(said.out)["updates"]]
    assert found[0] == stacks[0].filters.parameters
    assert found[0] != load("demo").stack_geometries()[0].filters.parameters


@pytest.mark.parametrize(
    "words",
    [("coates2013", "coates2013-11b", "--grid", "8x8"), (*EVALUATIONS[1:], "--ranks", "2,6"), ("--list",)],
)
def test_predictions_fit_eighty_columns_without_a_terminal_too(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    said = cotswold("simulate", *words)
    assert max(map(len, said.out.splitlines())) <= 80
    assert "…" not in said.out


@pytest.mark.parametrize("columns", [80, 60])
def test_no_figure_is_cut_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [{"milliseconds": 1234567 + one, **{f"figure {at}": at for at in range(20)}} for one in range(9)]
    table("a title", rows)
    said = capsys.readouterr().out
    assert "…" not in said
    assert all(f"{1234567 + one:,}" in said for one in range(9))
    assert max(len(line) for line in said.splitlines() if line.startswith("│")) <= columns
