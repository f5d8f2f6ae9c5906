"""Programs of `examples` with a picture run at small size, and docs/gallery.md shows each of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from examples.tools import gallery
from tests.support.examples.gallery import finish

PAGE = (gallery.ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
OUTPUTS = {
    "async_loops": r"exit codes of the loops: \[0, -9, 0, 0\]\n"
    r"pushes that the servers counted: (?P<pushes>\d+)\n"
    r"steps that the loops wrote: \[30, (?P<killed>\d+), 30, 30\]",
    "burgers": r"Adam: loss \d\S+ after 20 steps\nLBFGS: loss \d\S+ after 40 steps\nrelative error: \d",
    "data_servers_ddp": r"accuracy 0\.[5-9]\d*",
    "few_labels": r"logistic regression, features \{50: 0\.[6-9].*\n.*\nnetwork, features \{50: 0\.[6-9]",
    "lbfgs_ddp": r"the parameters of 2 processes are equal: True\nL-BFGS: loss 0?\S+ after 2\d passes",
    "paper_figure": r"32,000 patterns a processor: 175 GFLOP/s with LAM's reduction, 179 with",
    "three_machines": r"finished \{'replica-1': \d+, 'replica-2': \d+, 'replica-3': \d+\}",
    "unet": r"finished \d",
    "untie": r"largest difference of outputs: (0\.0e\+00|\d\.\de-0[6-9])\n",
    "untied": r"centred digits, untied: accuracy 0\.[5-9]",
}
"""Each example, and a pattern of what its short form prints."""
LONG = ("async_loops", "three_machines", "unet")
"""Examples with several servers or ranks, which only the long tests run."""
BYTES_MOST = 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.soak) if each in LONG else each for each in OUTPUTS]
)
def test_an_example_runs_as_its_docstring_says_and_draws_a_picture(name: str, tmp_path: Path) -> None:
    printed = finish(name, tmp_path / "run")
    match = re.search(OUTPUTS[name], printed)
    assert match is not None, printed
    if name == "async_loops":  # of the killed loop, one push may have arrived after its last line
        assert int(match["pushes"]) - 90 - int(match["killed"]) in (0, 1)
    picture = ElementTree.parse(tmp_path / "run" / f"{name}.svg").getroot()
    assert picture.tag.endswith("svg") and len(list(picture.iter())) > 50


def test_every_example_with_a_picture_is_tested() -> None:
    assert sorted(gallery.NAMES) == sorted(OUTPUTS)


@pytest.mark.parametrize("name", gallery.NAMES)
def test_the_page_shows_the_picture_the_program_and_its_command(name: str) -> None:
    (section,) = (each for each in PAGE.split("\n## ") if f"(figures/gallery/{name}.svg)" in each)
    assert f"[{name}.py](../examples/{name}.py)" in section
    assert f"\n    {gallery.said(name)}\n" in section


@pytest.mark.parametrize("name", gallery.NAMES)
def test_the_picture_of_the_page_is_small(name: str) -> None:
    picture = gallery.PICTURES / f"{name}.svg"
    assert picture.stat().st_size < BYTES_MOST
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_no_picture_is_left_over() -> None:
    assert sorted(each.stem for each in gallery.PICTURES.iterdir()) == sorted(gallery.NAMES)
