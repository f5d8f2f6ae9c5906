"""`cotswold data make japanese-ocr`, and the recipes that read its set."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.cli import data as command
from cotswold.data.datasets.japanese_ocr import JapaneseSet, typefaces
from cotswold.data.datasets.japanese_ocr.typefaces import Design
from cotswold.errors import UserError
from cotswold.recipe import load


@pytest.mark.usefixtures("few_designs")
def test_the_command_makes_the_set_and_says_what_people_should_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Design("Lost", "fonts-lost", ("lost.ttf",))
    monkeypatch.setattr(typefaces, "DESIGNS", (*typefaces.DESIGNS, lost))
    out = tmp_path / "set"
    words = [
        "make",
        "japanese-ocr",
        str(out),
        "--originals",
        "3203",
        "--held-out",
        "3",
        "--samples",
        "5000",
        "--jobs",
        "1",
    ]
    command.app(
        [*words, "--frequencies", "equal", "--held-family", "IPA Gothic"], result_action="return_value"
    )
    printed = capsys.readouterr().out
    assert "3,203 originals of 3,203 characters, 3,203 of them once or twice; 5,000 samples" in printed
    assert "held out from training: IPA Gothic" in printed
    assert "fewer than 8 families; get more with apt install fonts-lost" in printed
    made = JapaneseSet(out)
    assert made.request.frequencies == "equal" and made.request.held_families == ("IPA Gothic",)
    with pytest.raises(UserError, match="another directory"):
        command.app([*words, "--seed", "1"], result_action="return_value")


@pytest.mark.parametrize(
    ("name", "features", "sizes"),
    [
        ("bunyip-japanese-ocr", 400, [480]),
        ("distbelief-speech", 11 * 40, [2560] * 4),
        ("spoken-digits", 11 * 40, [256]),
    ],
)
def test_the_recipes_have_the_shapes_of_the_papers(name: str, features: int, sizes: list[int]) -> None:
    recipe = load(name)
    assert recipe.input.size == features
    assert [each.features for each in recipe.network.layers if each.type == "linear"] == sizes
