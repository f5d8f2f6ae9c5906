"""`cotswold evaluate --few-labels`, and `cotswold report` of its results."""

from __future__ import annotations

import json
import shutil
import subprocess
import webbrowser
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.data.datasets.test_demo import needs_demo
from tests.support.cli.command import Said, cotswold

from cotswold.analysis import Evaluation, FewLabels
from cotswold.analysis.selectivity.few_labels import DRAWS
from cotswold.run import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(desk: Desk, tmp_path: Path) -> Path:
    """Return a private run of stacks."""
    shutil.copytree(desk.stacks, tmp_path / "run")
    return tmp_path / "run"


def evaluate(run: Path, desk: Desk, *words: object) -> Said:
    tests = ("--positives", desk.images / "level", "--negatives", desk.images / "upright", "--name", "level")
    return cotswold("evaluate", run, *tests, "--splits", 1, "--stores", desk.stores, *words)


def kept(run: Path) -> FewLabels:
    evaluation = Evaluation.read(RunDirectory.open(run).evaluation)
    assert evaluation is not None and evaluation.objects[0].few_labels is not None
    return evaluation.objects[0].few_labels


def test_the_last_line_of_an_evaluation_is_the_sentence_about_few_labels(desk: Desk, copy: Path) -> None:
    said = evaluate(copy, desk, "--few-labels", "4,1", "--draws", 6)
    assert said.status == 0, said.err
    found = kept(copy)
    assert (found.labels, found.draws) == ((1, 4), 6)
    assert said.out.splitlines()[-1] == found.sentences("level")[-1]
    assert [*found.best_curves] == ["this network", "k-means", "random filters", "pixels"]
    table = said.out.partition("accuracy with few labels")[2].splitlines()
    for origin, curve in found.best_curves.items():
        row = next(line for line in table if line.startswith(f"│ {origin}"))
        assert f"{100 * curve.means[0]:.1f} ± {100 * curve.spreads[0]:.1f}" in row


def test_few_labels_are_added_to_an_earlier_result_and_not_measured_twice(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate(copy, desk).status == 0
    before = Evaluation.read(copy / "evaluation.json")

    def refuse(*words: object, **options: object) -> None:
        raise AssertionError("the neurons were tested again")

    monkeypatch.setattr("cotswold.analysis.score_object", refuse, raising=False)
    said = evaluate(copy, desk, "--few-labels", 2, "--draws", 3, "--json")
    assert said.status == 0, said.err
    after = Evaluation.read(copy / "evaluation.json")
    assert before is not None and after is not None
    assert after.objects[0].network == before.objects[0].network and before.objects[0].few_labels is None
    printed = json.loads(said.out)["objects"][0]["few_labels"]
    assert printed["labels"] == [2] and len(printed["curves"][0]["accuracies"][0]) == 3
    for words, is_reused in (
        (("--few-labels", 2, "--draws", 3), True),
        ((), True),  # nothing more is asked for
        (("--few-labels", 2, "--draws", 4), False),
        (("--few-labels", "2,3", "--draws", 4), False),
    ):
        said = evaluate(copy, desk, *words)
        assert said.status == 0, said.err
        assert ("reusing the result" in said.err) == is_reused
    assert kept(copy).labels == (2, 3)


def test_a_stop_during_few_labels_keeps_the_tested_neurons(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cotswold.analysis.few_labels", stop, raising=False)
        assert evaluate(copy, desk, "--few-labels", 2).status == 130
    evaluation = Evaluation.read(copy / "evaluation.json")
    assert evaluation is not None and [each.name for each in evaluation.objects] == ["level"]


def test_few_labels_of_chosen_layers_have_those_alone(desk: Desk, copy: Path) -> None:
    assert evaluate(copy, desk, "--few-labels", 2, "--draws", 2, "--layers", "1.filters").status == 0
    assert [curve.layer for curve in kept(copy).curves] == ["1.filters", "1.filters", ""]  # k-means: stack 2


def test_what_cannot_be_measured_is_refused_before_any_computation(desk: Desk, copy: Path) -> None:
    for wrong in ("1,x", "0", "-1", "1,,2", ""):
        said = evaluate(copy, desk, f"--few-labels={wrong}")
        assert said.status == 2 and "as in 1,2,5; got" in said.error
    said = evaluate(copy, desk, "--few-labels", "1,30")
    assert said.status == 2 and "30 positives and 30 negatives; use fewer than 30 labels" in said.error
    said = evaluate(copy, desk, "--few-labels", "1", "--draws", 1)
    assert said.status == 2 and "draws must be at least 2, got 1" in said.error
    assert not (copy / "evaluation.json").exists()
    said = cotswold("evaluate", desk.layers, "--few-labels", 1)
    assert said.status == 2 and "omit --few-labels" in said.error


def test_draws_without_labels_are_refused(desk: Desk, copy: Path) -> None:
    said = evaluate(copy, desk, "--draws", 9)
    assert said.status == 2 and "draws applies to few labels; give few_labels too" in said.error
    assert not (copy / "evaluation.json").exists()
    said = cotswold("evaluate", desk.layers, "--draws", 9)
    assert said.status == 2 and "omit --draws" in said.error


def test_a_test_of_a_recipe_has_its_own_numbers_of_labels(desk: Desk, copy: Path) -> None:
    recipe = (copy / "recipe.toml").read_text().replace("evaluate = []\n", "")
    sources = f'positives = "{desk.images / "level"}"\nnegatives = "{desk.images / "upright"}"'
    (copy / "recipe.toml").write_text(
        f'{recipe}\n[[evaluate]]\nname = "level"\n{sources}\nfew_labels = [2, 5]\n'
    )
    said = cotswold("evaluate", copy, "--stores", desk.stores, "--splits", 1)
    assert said.status == 0, said.err
    assert kept(copy).labels == (2, 5) and kept(copy).draws == DRAWS
    assert any(
        line.startswith("level, balanced accuracy with 5 labels per class: this network ")
        for line in said.out.splitlines()
    )


def test_the_report_shows_the_sentence_and_a_plot(desk: Desk, copy: Path) -> None:
    assert evaluate(copy, desk, "--few-labels", "1,4", "--draws", 5).status == 0
    assert cotswold("report", copy).status == 0
    page = (copy / "report.html").read_text()
    section = page.split('id="few-labels"')[1].split("</section>")[0]
    for sentence in kept(copy).sentences("level"):
        assert sentence[1:] in section
    assert "<svg" in section
    assert section.count("<td") >= 4 * 2


def test_report_opens_the_page_where_there_is_a_display(
    desk: Desk, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_page(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    monkeypatch.setattr("cotswold.cli.report.has_display", lambda: True)
    said = cotswold("report", copy, "--open")
    assert opened == [(copy / "report.html").resolve().as_uri()]
    assert said.out.strip() == str(copy / "report.html") and "browser" not in said.err
    monkeypatch.setattr("cotswold.cli.report.has_display", lambda: False)
    said = cotswold("report", copy, "--open")
    assert said.status == 0 and len(opened) == 1
    assert said.out.strip() == str(copy / "report.html") and "open the page yourself" in said.err
    assert cotswold("report", copy).err == ""


@pytest.mark.parametrize(("words", "is_open"), [((), False), (("OPEN=1",), True)])
def test_make_demo_ends_with_the_report(words: tuple[str, ...], is_open: bool) -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "demo", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    last = said.stdout.splitlines()[-1].split()
    assert last[:3] == [".venv/bin/cotswold", "report", "demo/run"]
    assert last[3:] == (["--open"] if is_open else [])


def demo(folder: Path, *words: object) -> FewLabels:
    """Train and evaluate `demo` in a folder."""
    run, stores = folder / "run", folder / "stores"
    said = cotswold("train", "demo", "--run", run, "--stores", stores, *words)
    assert said.status == 0, said.err
    said = cotswold("evaluate", run, "--stores", stores)
    assert said.status == 0, said.err
    found = kept(run)
    assert said.out.splitlines()[-1] == found.sentences("faces")[-1]
    return found


@needs_demo
@pytest.mark.slow
def test_the_demo_ends_with_its_sentence_also_where_it_has_hardly_learnt(tmp_path: Path) -> None:
    short = [f"network.stacks.{stack}.epochs=0.2" for stack in (1, 2)]
    settings = ["data.limit=500", "training.epochs=0.2", *short]
    found = demo(tmp_path, *(word for setting in settings for word in ("--set", setting)))
    assert found.labels == (1, 2, 5, 10) and (found.positives, found.negatives) == (50, 150)
    # what this network learns is not measured by them
    assert found.best_curves["random filters"].means[2] > 0.7
    assert found.best_curves["pixels"].means[2] > 0.7


@needs_demo
@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_needs_fewer_labels_than_k_means_random_filters_and_pixels(
    seed: int, tmp_path: Path
) -> None:
    found = demo(tmp_path, "--set", f"training.seed={seed}")
    means = {origin: curve.means for origin, curve in found.best_curves.items()}
    for index, labels in enumerate(found.labels):
        best = max(means, key=lambda origin: means[origin][index])
        assert best == "this network", f"{labels} labels: {means}"
    assert found.winners(found.shown) == ("this network",)
    # two labels of each class on responses of this network, ten on random filters or pixels
    assert means["this network"][1] > max(means["random filters"][3], means["pixels"][3])
