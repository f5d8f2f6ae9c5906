"""docs/simulate.md: its commands parse, its file is valid, its figures are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.test_help_texts import examples, parses

from cotswold.simulate import parse_cluster, shipped_clusters

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulate.md"
RESULTS = ROOT / "benchmarks" / "results" / "simulate.json"
BUNYIP = ROOT / "benchmarks" / "results" / "bunyip-figures.json"


def test_its_commands_parse() -> None:
    found = examples(PAGE.read_text())
    assert len(found) >= 5
    for line in found:
        parses(line)


def test_its_cluster_is_valid() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert parse_cluster(block).name == "mine"


def test_it_tells_of_every_shipped_cluster() -> None:
    assert [name for name in shipped_clusters() if f"`{name}`" not in PAGE.read_text()] == []


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
    assert links and all((PAGE.parent / link).exists() for link in links)


def test_its_figures_are_those_that_the_script_left() -> None:
    page = PAGE.read_text()
    for row in json.loads(RESULTS.read_text())["words"]:
        for figure in re.findall(r"\d+(?:\.\d+)?", row["predicted"]):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", page), row


def test_bunyips_table_is_the_one_that_the_script_left() -> None:
    page = PAGE.read_text()
    rows = json.loads(BUNYIP.read_text())["words"]
    assert len(rows) >= 10
    assert [row for row in rows if f"| {row['the paper']} | {row['predicted']} |" not in page] == []
