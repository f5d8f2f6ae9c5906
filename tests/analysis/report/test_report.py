from __future__ import annotations

import copy
import errno
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image

from cotswold.analysis.classification import Classification, Example
from cotswold.analysis.layers import top_layers
from cotswold.analysis.plots import Line, plot
from cotswold.analysis.report import SkippedSamples, build_report
from cotswold.analysis.report.blocks import Figure, Page, PageSection, Table, TableCell, row
from cotswold.analysis.report.build import page_html, printed_set_section, section_html
from cotswold.analysis.report.evaluation import classification
from cotswold.analysis.report.filters import untrained_share
from cotswold.analysis.report.training import speed
from cotswold.analysis.run_history import History
from cotswold.analysis.selectivity.objects import Baselines, SelectivitySettings, score_object
from cotswold.analysis.selectivity.optimal_stimuli import Ascent
from cotswold.analysis.selectivity.results import Clustering, Evaluation
from cotswold.data import Preparation
from cotswold.errors import DiskFullError
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe, dump, load
from cotswold.run import EventLog, RunDirectory


class Balanced(HTMLParser):
    """A parser that fails if tags do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "br", "path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use"):
            assert self.open.pop() == tag


def evaluated(network: StackNetwork, images: torch.Tensor) -> Evaluation:
    positive = torch.arange(len(images)) % 2 == 0
    row = score_object(
        "<faces>",
        network,
        Baselines(random=network),
        lambda: [(images, positive)],
        SelectivitySettings(
            top_layers(network), random_stimuli=4, exemplars=2, ascent=Ascent(steps=2, starts=1)
        ),
        original_of=lambda index: (f"image {index}", Image.fromarray(np.zeros((9, 12, 3), np.uint8))),
    )
    return Evaluation(7).with_object(row)


def test_a_run_without_anything_says_what_is_missing_and_how_to_get_it(run: RunDirectory) -> None:
    run.events.unlink()
    page = build_report(run, name="runs/<small>").read_text()
    for command in (
        "cotswold evaluate runs/&lt;small&gt; --positives A --negatives B",
        "cotswold report runs/&lt;small&gt;",
    ):
        assert command in page
    assert "No results yet" in page


def test_the_page_is_whole_and_fetches_nothing(
    run: RunDirectory, network: StackNetwork, images: torch.Tensor
) -> None:
    evaluation = evaluated(network, images)
    page = build_report(run, network, evaluation=evaluation).read_text()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    assert "<script" not in page and "@import" not in page
    assert "<faces>" not in page and "a <fast> one" not in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_figures_on_the_page_are_those_of_the_files(
    run: RunDirectory, network: StackNetwork, images: torch.Tensor
) -> None:
    evaluation = evaluated(network, images)
    run.evaluation.write_text(evaluation.to_json())
    page = build_report(run).read_text()
    best = evaluation.objects[0].best
    assert f"{100 * best.held_out:.1f}\u202f% ± {100 * best.spread:.1f}" in page
    assert "Network: step 7." in page
    assert "90 → 45 (−50.0\u202f%)" in page
    assert "1\u202f234 images of 16 × 16 pixels in colour" in page
    assert "training is not finished" in page


def test_the_stacks_come_first_in_the_table_of_selectivity_and_headings_are_short(
    run: RunDirectory, network: StackNetwork, images: torch.Tensor
) -> None:
    evaluation = evaluated(network, images)
    page = build_report(run, evaluation=evaluation).read_text()
    head = re.findall(r'<th scope="col">(.*?)</th>', page.split('id="selectivity"')[1].split("</thead>")[0])
    stacks = [f"Stack {index + 1}" for index in range(len(evaluation.objects[0].network))]
    assert head[: 2 + len(stacks)] == ["Object", "Guess", *stacks]
    assert set(head[2 + len(stacks) :]) <= {"Random", "k-means", "Control", "Mean image"}
    assert "Stack: the best neuron of this network" in page


def test_the_page_says_that_training_is_measured_under_a_rising_sparsity(run: RunDirectory) -> None:
    assert "the current λ, which rises over the first part" in build_report(run).read_text()


def test_the_account_appears_when_training_has_ended(run: RunDirectory) -> None:
    with EventLog(run.events) as log:
        log.write("end", status="finished", samples=4321, flops=2.5e12, seconds=100.0, dollars=0.5)
    page = build_report(run).read_text()
    for words in ("4\u202f321", "2.5 TFLOP", "$0.50"):
        assert words in page
    assert "not finished" not in page


def test_the_page_of_a_extended_run_tells_its_epochs_beside_the_recipe_of_its_beginning(
    run: RunDirectory,
) -> None:
    with EventLog(run.events) as log:
        log.write("extended", epochs=[10.0], extension=1)
        log.write("extended", epochs=[12.0], extension=2)
        log.write("end", status="finished")
    page = build_report(run).read_text()
    assert "Extended to" in page and "12 epochs" in page and "10 epochs" not in page
    assert "The resolved recipe at the start of the run" in page


def falling_spectrum(run: RunDirectory) -> None:
    with EventLog(run.events) as log:
        found = {"radial": [6.0, 0.0, -9.0, -40.0], "frequencies": [0.1, 0.2, 0.3, 0.4], "band": [0.1, 0.35]}
        log.write("whiteness", **found, colour_correlation=0.9, images=50)


def test_whiteness_is_told_by_the_greatest_deviation_in_the_band(run: RunDirectory) -> None:
    falling_spectrum(run)
    page = build_report(run).read_text()
    assert "<dt>Largest deviation in the band</dt><dd>9 dB</dd>" in page
    assert "±1 dB" in page


def test_images_that_are_not_whitened_are_said_not_to_be_and_nothing_is_asked_of_them(
    run: RunDirectory,
) -> None:
    run.recipe.write_text(run.recipe.read_text().replace("whiten = true", "whiten = false"))
    falling_spectrum(run)
    page = build_report(run).read_text()
    assert "The images are not whitened" in page
    assert "0.900" in page
    for demand in ("±1 dB", "deviation", "flat band", "Whiteness"):
        assert demand not in page


def test_an_objective_that_rises_is_seen_to_rise(run: RunDirectory) -> None:
    with EventLog(run.events) as log:
        log.write("validation", phase=0, step=30, phase_step=30, loss=99.0)
    assert "90 → 99 (+10.0\u202f%)" in build_report(run).read_text()


def test_a_report_that_fails_leaves_the_old_one(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_report(run).read_text()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=r"report\.html"):
        build_report(run)
    assert run.report.read_text() == before
    assert not list(run.path.glob("*.partial"))


def test_an_evaluation_survives_its_file(network: StackNetwork, images: torch.Tensor) -> None:
    evaluation = evaluated(network, images)
    again = Evaluation.from_json(evaluation.to_json())
    assert again == evaluation
    assert again.with_object(again.objects[0]).objects == again.objects
    portrait = again.objects[0].profiles[0]
    assert portrait.compared_neurons == 4 and len(portrait.highest) == 2


def test_plots_take_their_colours_from_the_page() -> None:
    drawn = plot("a", [Line("one", [0, 1], [1, 2], dots=True), Line("two", [0, 1], [2, 1], 1)], x="x", y="y")
    assert "var(--s1)" in drawn and "var(--s2)" in drawn and "var(--ink-2)" in drawn
    assert "#0102" not in drawn
    assert len(drawn) < 30_000


def test_the_best_of_network_and_baselines_is_marked_and_named_whoever_it_is(
    run: RunDirectory, network: StackNetwork, images: torch.Tensor
) -> None:
    evaluation = evaluated(network, images)
    row = evaluation.objects[0]
    baseline = replace(row.network[0], layer="2.pooled", held_out=0.9901)
    row = replace(row, dictionary=(baseline,), clustering=Clustering(7, 4500, converged=False))
    page = build_report(run, evaluation=Evaluation(7, (row,))).read_text()
    headline = page.split('class="numbers"')[1].split("</header>")[0]
    assert "<b>99.0\u202f%</b><span>best neuron for &lt;faces&gt;, held out: k-means</span>" in headline
    assert f"<b>{100 * row.best.held_out:.1f}\u202f%</b>" in headline and "this network" in headline
    marked = re.findall(r'<td class="best" data-name="([^"]*)"', page)
    assert marked == ["k-means"]
    assert "Best for &lt;faces&gt;: a neuron of a k-means dictionary in the last stack" in page
    assert "did not converge, and was stopped after 7 passes over 4\u202f500 images" in page


def test_on_a_phone_every_figure_of_a_wide_table_bears_the_name_of_its_column() -> None:
    cells = [*row("faces", "1"), TableCell("2", best=True), TableCell("3")]
    wide = section_html(PageSection("", "", [Table(["Object", "Stack 1\npooled", "a<b", "c"], [cells])]))
    assert '<th scope="col">Stack 1<br>pooled</th>' in wide
    assert re.findall(r'data-name="([^"]*)"', wide) == ["Stack 1 pooled", "a&lt;b", "c"]
    assert 'class="scroll listed"' in wide


def test_the_part_that_is_right_stands_beside_its_class_before_all_answers() -> None:
    found = Classification(3, "test", ("cat", "dog", "emu"), ((4, 1, 0), (0, 5, 0), (1, 1, 2)))
    page = section_html(classification(found, "runs/x", "images"))
    assert re.findall(r'<th scope="col">(.*?)</th>', page)[1:] == ["Correct", "cat", "dog", "emu"]
    emu = page.split('<th scope="row">emu</th>')[1]
    assert emu.startswith('<td data-name="Correct">50.0')


HOSTILE = "\"><script>alert(1)</script>'{{ 7 * 7 }}"


def test_hostile_names_of_classes_objects_runs_and_images_are_text(
    run: RunDirectory, network: StackNetwork, images: torch.Tensor
) -> None:
    evaluation = evaluated(network, images)
    evaluation = Evaluation(7, (replace(evaluation.objects[0], name=HOSTILE),))
    example = Example("data:image/png;base64,AA==", HOSTILE, HOSTILE)
    found = Classification(3, HOSTILE, (HOSTILE, "b"), ((4, 1), (0, 5)), (example,), (example,))
    left_out = SkippedSamples(3, [HOSTILE], [HOSTILE])
    whole = build_report(run, network, evaluation=evaluation, left_out=left_out, name=HOSTILE).read_text()
    part = section_html(classification(found, HOSTILE, "images"))
    for page in (whole, part):
        parser = Balanced()
        parser.feed(page)
        assert parser.open == []
        assert "<script" not in page and "{{ 7 * 7 }}" in page
        assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == page.count("alert(1)") > 3


def test_a_recipe_is_text_wherever_the_page_shows_it(run: RunDirectory, recipe: Recipe) -> None:
    source = recipe.data.model_copy(update={"source": HOSTILE})
    run.recipe.write_text(dump(recipe.model_copy(update={"data": source})))
    whole = build_report(run).read_text()
    # a recipe's schema lets no such name pass; the page does not rely on it
    named = page_html(Page(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], [HOSTILE], [], HOSTILE))
    for page in (whole, named):
        assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert f"<title>{escape(HOSTILE)}</title>" in named and f"<h1>{escape(HOSTILE)}</h1>" in named


def damaged(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evaluation.json", b'{"step": "x"}'),
        ("evaluation.json", b"[" * 10_000),
        ("classification.json", b"\x00"),
        ("environment.json", b"{"),
        ("environment.json", b"[1]"),
        ("events.jsonl", b'{"kind": "start", "samples": 3}\n[]\n{"kind": "end"}\n'),
        ("events.jsonl", b'{"kind": "whiteness", "radial": [1], "frequencies": [1, 2], "band": [1]}\n'),
    ],
)
def test_a_damaged_file_is_named_on_a_page_that_shows_the_rest(
    run: RunDirectory, name: str, content: bytes
) -> None:
    damaged(run.path / name, content)
    problems: list[str] = []
    page = build_report(run, problems=problems).read_text()
    assert len(problems) == 1 and problems[0].startswith("the page is without")
    assert "Not shown" in page and escape(problems[0][1:]) in page
    assert "The resolved recipe" in page


def test_events_before_a_damaged_line_are_shown(run: RunDirectory) -> None:
    with run.events.open("ab") as file:
        file.write(b"no event\n" + b'{"kind": "end"}\n')
    page = build_report(run).read_text()
    assert "90 → 45" in page
    assert "is not an event" in page


def test_a_run_of_a_week_is_told_in_little_memory_and_nothing_is_lost_of_its_sums() -> None:
    event = {"kind": "step", "phase": 0, "interval_seconds": 1.0, "waited_seconds": 0.5, "gflops": 3.0}
    history = History.from_events(
        {**event, "phase_step": at, "seconds": at, "loss": float(at)} for at in range(100_000)
    )
    curve = history.phases[0].training["loss"]
    assert 4096 <= len(curve.steps) <= 8192
    assert curve.steps[-1] == 99_999 and curve.steps[0] < 100
    assert curve.steps == curve.values
    assert len(history.phases[0].rates["gflops"][0].steps) <= 8192
    assert (history.waited_seconds, history.interval_seconds) == (50_000, 100_000)
    section = speed(history, "images")
    assert section is not None
    assert "Waiting for images took 13\u202fh 53\u202fmin of 27\u202fh 46\u202fmin" in section_html(section)


def test_a_page_is_not_written_through_a_link(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    run.report.symlink_to(tmp_path / "thesis.tex")
    run.report.with_name(f"report.html.{os.getpid()}.partial").symlink_to(tmp_path / "thesis.tex")
    build_report(run)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert not run.report.is_symlink() and "<html" in run.report.read_text()


def test_images_that_were_left_out_are_named(run: RunDirectory) -> None:
    named = [f"{number}.png is torn" for number in range(30)]
    page = build_report(run, left_out=SkippedSamples(1500, named, ["Splits: by folders."])).read_text()
    assert "skipped: 1\u202f500" in page and "Splits: by folders." in page
    assert "<li>0.png is torn</li>" in page and "and 1\u202f480 more" in page


def test_filters_that_nothing_has_shaped_are_counted_as_noise(network: StackNetwork) -> None:
    stack = copy.deepcopy(network.stacks[0])
    low = Preparation(size=(16, 16), whiten_cutoff=0.4)
    noise = torch.randn(stack.filters.shape, generator=torch.Generator().manual_seed(0))
    smooth = torch.ones(6, 6)[:, :, None].expand(6, 6, 3).reshape(6, 18)[..., None]
    with torch.no_grad():
        stack.filters.copy_(noise)
        assert untrained_share(stack, low) == pytest.approx(1.0, abs=0.02)
        stack.filters[:, :, :, :, ::2] = smooth
        assert untrained_share(stack, low) == pytest.approx(0.5, abs=0.02)
        stack.filters.copy_(smooth.expand_as(stack.filters))
        assert untrained_share(stack, low) == 0
    assert untrained_share(stack, Preparation(size=(16, 16), whiten_cutoff=1.0)) is None
    assert untrained_share(stack, Preparation(size=(16, 16), whiten=False)) is None


def test_the_report_of_a_run_on_print_shows_the_sheets_of_its_set(tmp_path: Path) -> None:
    recipe = load("bunyip-japanese-ocr", [f"data.source={tmp_path}:5000"])
    assert printed_set_section(recipe) is None  # the set is gone
    (tmp_path / "japanese-ocr.json").write_text("{}")
    (tmp_path / "sheets").mkdir()
    for name in ("families-samples", "originals-samples", "of-another-version"):
        Image.new("L", (4, 4)).save(tmp_path / "sheets" / f"{name}.png")
    section = printed_set_section(recipe)
    assert section is not None
    captions = [block.caption for block in section.blocks if isinstance(block, Figure)]
    assert [each.partition(":")[0] for each in captions] == [
        "Scans from which training samples are generated, 20 x 20 grey",
        "Held out",
    ]
