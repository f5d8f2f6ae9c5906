"""docs/how-to/monitor.md: its dashboard, rules and table use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from docs.generator.reference.metrics import data_families, run_families

import cotswold

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
FOLDER = HOW_TO / "monitoring"
PAGE = (HOW_TO / "monitor.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yml").read_text(encoding="utf-8"))
FAMILIES = {each.name: each for each in [*run_families(), *data_families()]}
LABELS = {
    name: {label for labels, _ in each.values for label in labels} | {"instance", "job"}
    for name, each in FAMILIES.items()
}
"""Labels of each metric; Prometheus adds `instance` and `job`."""
METRIC = re.compile(r"\bcotswold_\w+")
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of the dashboard, with the legend of its results."""
    for panel in panels():
        yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])


def check(expression: str, text: str) -> None:
    """Fail if a query names a metric or a label that does not exist, or reads a counter without a rate.

    ``text`` is a legend or a summary, which may name labels of the result.
    """
    names = METRIC.findall(expression)
    assert names and set(names) <= FAMILIES.keys(), expression
    found = set.intersection(*(LABELS[name] for name in names))
    kept = re.search(r"sum by \(([^)]*)\)", expression)
    shown = {each.strip() for each in kept[1].split(",")} if kept else found
    used = re.findall(r"(?:\$labels\.|\{\{)(\w+)", text.replace("{{ $labels", "$labels"))
    matched = re.findall(r"[{,]\s*(\w+)\s*=~?", expression)
    assert shown <= found and set(used) <= shown and set(matched) <= found, (expression, text)


@pytest.mark.parametrize(("expression", "legend"), list(queries()))
def test_queries_of_the_dashboard_name_metrics_and_labels_that_exist(expression: str, legend: str) -> None:
    check(expression, legend)
    for name in METRIC.findall(expression):
        is_rate = re.search(
            rf"(?:rate|increase)\({name}\{{[^}}]*\}}\[(?:\$__rate_interval|\d+m)\]\)", expression
        )
        is_shown_as_total = expression.startswith(name) and "[" not in expression
        assert FAMILIES[name].kind == "gauge" or is_rate or is_shown_as_total, expression
        assert FAMILIES[name].kind == "counter" or not is_rate, expression


def test_a_wrong_metric_or_label_is_found() -> None:
    for wrong, legend in (
        ("cotswold_nowhere", ""),
        ("cotswold_loss", "{{replica}}"),
        ("cotswold_samples_total{kind=~'x'}", ""),
        ("sum by (layer) (cotswold_replica_activity)", ""),
    ):
        with pytest.raises(AssertionError):
            check(wrong, legend)


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_alerts_name_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    check(rule["expr"], rule["annotations"]["summary"])


def test_expressions_of_the_page_are_those_of_the_rules() -> None:
    shown = dict(re.findall(r"^\| `(Cotswold\w+)` \| `(.*?)` \|", PAGE, flags=re.MULTILINE))
    assert shown == {rule["alert"]: rule["expr"] for rule in ALERTS}


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["id"] is None
    assert {"title", "uid", "time", "refresh", "version", "panels", "templating"} <= DASHBOARD.keys()
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "run", "pool"]
    assert variables["datasource"] | {"type": "datasource", "query": "prometheus"} == variables["datasource"]
    for name in ("run", "pool"):
        (metric,) = METRIC.findall(variables[name]["query"]["query"])
        assert metric in FAMILIES and any(f'instance=~"${name}"' in query for query, _ in queries())
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["datasource"] == source and panel["title"] and panel["targets"]
        assert all(target["datasource"] == source for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert panel["fieldConfig"]["defaults"]["unit"] and panel["type"] in ("timeseries", "stat")


def test_panels_have_their_own_number_and_place() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every) > 40
    boxes = [panel["gridPos"] for panel in every]
    assert all(box["x"] >= 0 and box["x"] + box["w"] <= 24 for box in boxes)
    for one, other in combinations(boxes, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )


def test_the_configuration_of_the_page_is_part_of_the_file() -> None:
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert yaml.safe_load(shown)["scrape_configs"] == settings["scrape_configs"]
    assert [(FOLDER / name).is_file() for name in settings["rule_files"]] == [True]
    ports = re.findall(r"--metrics (\d+)$", PAGE, flags=re.MULTILINE)
    targets = [each["static_configs"][0]["targets"] for each in settings["scrape_configs"]]
    assert targets == [[f"127.0.0.1:{port}"] for port in ports]


def test_the_program_of_the_page_reads_the_events_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    np.savez("digits.npz", x=rows, labels=np.arange(64) % 2)
    recipe = """
        name = "digits"
        data = { type = "vectors", source = "digits.npz", labels = "file" }
        network = { layers = [{ type = "linear", features = 4 }] }
        training = { strategy = "supervised", batch_size = 16, epochs = 2 }
    """
    Path("digits.toml").write_text("\n".join(line.strip() for line in recipe.splitlines()))
    cotswold.train_recipe("digits.toml", "runs/digits")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    capsys.readouterr()
    exec(compile(program, "monitor.md", "exec"), {})
    loss, rate = map(float, capsys.readouterr().out.split())
    assert 0 < loss < 10 and rate > 0
