"""The page of a run with replicas: curves by time, and the account of every sample."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cotswold.analysis.plots import Line, plot
from cotswold.analysis.report import build_report
from cotswold.recipe import dump, parse
from cotswold.run import EventLog, RunDirectory
from cotswold.ui.format import three_figures

RECIPE = """
name = "x"
data = { type = "vectors", source = "x.npy", labels = "file", features = 5 }
network = { layers = [{ type = "linear", features = 8 }] }
training = { strategy = "downpour", update_rule = "adagrad", max_staleness = 4, \
staleness_policy = "drop", push_every = 2 }
cluster = { workers = 3, servers = 2 }
"""

PUSHED = {"layer 1": {"gradient": 2_000_000, "factors": 500_000}}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", dump(parse(RECIPE)), {})
    with EventLog(run.events) as log:
        log.write("start", name="x", strategy="downpour", parameters=75, images=1000)
        log.write("phase_start", phase="layers", parameters=75)
        for second in range(1, 20):
            log.write(
                "step",
                phase="layers",
                step=100 * second,
                phase_step=100 * second,
                phase_steps=2000,
                training_seconds=float(second),
                loss=1 / second,
                accuracy=1 - 1 / (1 + second),
                staleness=1.5,
                staleness_max=4,
                replicas=3 if second < 9 else 2,
                queued_bytes=1000 * (second % 3),
                dirty_seconds_max=0.5 * second,
                push_samples=400.0,
                updates=50 * second,
                samples_counted=90 * second,
                samples_refused=10 * second,
                samples_lost=second,
                samples_per_second=100.0,
                gflops=0.1,
                interval_seconds=1.0,
                waited_seconds=0.0,
            )
            validation = {"training_seconds": second + 0.5, "loss": 1.1 / second, "accuracy": 0.5}
            log.write("validation", phase="layers", step=100 * second, phase_step=100 * second, **validation)
        log.write("cluster_lost", name="replica-2", sentence="it is silent")
        log.write("cluster_recovered", name="run/3", sentence="goes on from a disk")
        log.write("cluster_samples_lost", name="", sentence="5 samples that counted were lost by some server")
        log.write("cluster_restored", name="server-1.1", sentence="1 bucket (3): 2 shards had 7 updates")
        log.write("cluster_disk", name="server-0", sentence="the disk is slow")
    return run


def section(run: RunDirectory) -> str:
    page = build_report(run).read_text()
    found = re.search(r'<section[^>]*id="replicas".*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def fates(run: RunDirectory) -> dict[str, str]:
    rows = re.findall(r'<th scope="row">(\w[\w .]*)</th>\s*<td[^>]*>([^<]*)<', section(run))
    return {name: re.sub(r"\s+", " ", value).strip() for name, value in rows}


def test_curves_are_drawn_against_time_with_a_line_for_validation(run: RunDirectory) -> None:
    page = section(run)
    for caption in (
        "Loss against time",
        "Accuracy against time",
        "Connected replicas",
        "Queued updates",
    ):
        assert caption in page
    assert page.count("<svg") == 5 and page.count("seconds of training") == 5
    assert page.count(">validation<") == 2 and ">maximum<" in page
    assert "Adagrad, with sums that all replicas share" in page
    assert "4, beyond which updates are dropped" in page and "3 replicas, 2 servers" in page
    assert re.search(r"Lost replicas that were restarted</dt>\s*<dd>1</dd>", page)


def test_steps_between_pushes_are_the_least_and_the_mean_of_samples_is_told(run: RunDirectory) -> None:
    page = section(run)
    assert re.search(r"Steps between pulls, between pushes, at least</dt>\s*<dd>1, 2</dd>", page)
    assert re.search(r"Mean samples per push</dt>\s*<dd>400</dd>", page)


def test_a_run_on_a_standing_cluster_names_the_cluster_and_counts_no_servers(tmp_path: Path) -> None:
    recipe = RECIPE.replace("servers = 2", 'controllers = "10.0.0.1,10.0.0.2"')
    run = RunDirectory.create(tmp_path / "run", dump(parse(recipe)), {})
    with EventLog(run.events) as log:
        log.write("start", name="x", strategy="downpour", parameters=75, images=1000)
        log.write("phase_start", phase="layers", parameters=75)
        log.write(
            "step", phase="layers", step=9, training_seconds=1.0, loss=0.5, samples_counted=9, samples_lost=3
        )
    page = section(run)
    assert "3 replicas; servers of the cluster at 10.0.0.1,10.0.0.2" in page
    assert "a replica or a server ended; the samples were assigned again, or skipped" in page


def test_every_sample_is_told_with_its_fate_before_the_run_ends_and_after(run: RunDirectory) -> None:
    before = fates(run)
    assert before["Counted"] == "1 710 (90.00 %)" and before["Refused"] == "190 (10.00 %)"
    assert before["Lost"] == "19 (1.00 %)" and before["Torn"] == "0 (0.00 %)"
    with EventLog(run.events) as log:
        log.write(
            "phase_end",
            phase="layers",
            step=2000,
            samples_counted=1500,
            samples_torn=100,
            samples_left_out=400,
            pushed_bytes_by_layer=PUSHED,
        )
    after = fates(run)
    assert after["layer 1"] == "2 MB as gradients, 500 kB as factors"
    assert after["Counted"] == "1 500 (75.00 %)" and after["Skipped"] == "400 (20.00 %)"


def test_losses_of_servers_and_troubles_of_their_disks_are_told(run: RunDirectory) -> None:
    page = section(run)
    assert re.search(r"Largest age of a change that was on no disk</dt>\s*<dd>9.5[^<]*s</dd>", page)
    assert re.search(r"Buckets restored from disks</dt>\s*<dd>1</dd>", page)
    for sentence in (
        "5 samples that counted were lost by some server",
        "server-1.1 resumed from its disk with 1 bucket (3): 2 shards had 7 updates",
        "server-0: the disk is slow",
    ):
        assert sentence in page


def test_the_account_names_who_sent_the_bytes(run: RunDirectory) -> None:
    with EventLog(run.events) as log:
        log.write("end", status="finished", samples=1900, wire_bytes=2_470_000)
    page = build_report(run).read_text()
    assert page.count("Sent by the coordinator") == 2 and "Sent between ranks" not in page


def test_a_loss_that_has_grown_beyond_all_bounds_is_a_figure_that_can_be_read() -> None:
    assert [three_figures(value) for value in (8.17e35, -1e15, 123456.0)] == [
        "8.2e+35",
        "-1.0e+15",
        "123\u202f456",
    ]
    assert [three_figures(float(value)) for value in ("inf", "nan")] == ["inf", "nan"]


def test_the_axis_of_learning_is_samples_for_replicas_have_no_step_in_common(run: RunDirectory) -> None:
    page = build_report(run).read_text()
    learning = re.search(r'<section[^>]*id="learning".*?</section>', page, re.DOTALL)
    assert learning is not None and ">samples<" in learning[0] and ">step<" not in learning[0]


def test_ticks_of_many_samples_are_short_and_the_mean_of_staleness_is_seen_under_the_greatest() -> None:
    line = Line("loss", range(0, 2_000_001, 100_000), [1.0] * 21)
    learning = plot("learning", [line], x="samples", y="loss")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", learning)
    ticks = texts[: texts.index("samples")]
    assert 3 <= len(ticks) <= 7 and ticks[-1] == "2M" and "500k" in ticks
    stale = [Line("mean", [0, 1], [0.5, 1.0]), Line("most", [0, 1], [50, 200], colour=1)]
    drawn = plot("stale", stale, x="seconds", y="updates", bottom=0, scale="symlog")
    assert {">0<", ">1<", ">10<", ">100<"} <= set(re.findall(r">[0-9]+<", drawn))


def test_before_anything_is_learnt_there_is_no_such_section(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", dump(parse(RECIPE)), {})
    with EventLog(run.events) as log:
        log.write("start", name="x", strategy="downpour", parameters=75, images=1000)
    assert 'id="replicas"' not in build_report(run).read_text()
