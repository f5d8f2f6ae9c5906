"""docs/japanese-ocr.md: its programs run, its commands parse, its table is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cotswold.cli.main import build
from cotswold.data.datasets.japanese_ocr import JapaneseSet, typefaces

PAGE = (Path(__file__).parents[4] / "docs/japanese-ocr.md").read_text()


@pytest.mark.soak
def test_the_programs_of_the_page_run(
    made: JapaneseSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "japanese-ocr").symlink_to(made.path)
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        smaller = program.replace("343_800", "400").replace("workers=2", "max_iterations=1, progress=False")
        exec(smaller, {})
    assert (tmp_path / "samples.png").stat().st_size and (tmp_path / "runs/ocr").is_dir()


def test_the_commands_of_the_page_parse() -> None:
    commands = re.findall(r"^    cotswold (.*)$", PAGE, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command, comments=True)
        build(words[0]).parse_args(words, exit_on_error=False, print_error=False)


def test_the_page_names_every_package_that_brings_a_family_of_its_own() -> None:
    table = PAGE.split("| family |")[1].split("\n\n")[0]
    families = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert len(families) == 15
    package = {each.name: each.package for each in typefaces.DESIGNS}
    for family in families:
        assert package[family].removesuffix("-gothic").removesuffix("-mincho") in PAGE
