"""The tutorials: a reader who does what they say sees what they say."""

from __future__ import annotations

import ast
import csv
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.cli.test_help_texts import parses
from tests.support.tutorials.page import Save, See, Type, steps
from tests.support.tutorials.reader import Reader

import cotswold

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TITLES = {
    "first-run": "First run",
    "own-module": "Your own module in ten minutes",
    "pinn": "L-BFGS on a physics-informed network",
    "three-machines": "Three unequal laptops",
    "kill-anything": "Kill anything",
    "partitioned-unet": "A U-Net too large for one machine",
    "data-servers-ddp": "Data servers under a DDP loop",
}
"""Pages in the order of the menu, and their headings."""
ELSEWHERE = {"three-machines", "partitioned-unet", "data-servers-ddp"}
"""Pages with commands for several machines."""
PROGRAMS = {
    "cd",
    "chmod",
    "cotswold",
    "export",
    "head",
    "kill",
    "openssl",
    "pip",
    "python",
    "scp",
    "torchrun",
}
"""First words of commands."""

pages = pytest.mark.parametrize("name", TITLES)


def followed(name: str, tmp_path: Path) -> Reader:
    """Return a reader who has done all that a page says."""
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = Reader(folder)
    reader.follow(FOLDER / f"{name}.md")
    return reader


def numbers(expression: str, text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(expression, text)]


def first_run(reader: Reader) -> None:
    before, after = numbers(r"unseen\.npz: ([\d.]+)% of 297 samples", reader.output())
    assert before > 85 and after > 90
    with (reader.folder / "classes.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 297
    assert cotswold.Run(reader.folder / "runs" / "digits").status == "finished"
    report = (reader.folder / "runs" / "digits" / "report.html").read_text(encoding="utf-8")
    for heading in ("Learning", "Classification", "Speed", "Account", "Configuration"):
        assert f">{heading}</h2>" in report


def own_module(reader: Reader) -> None:
    run = cotswold.Run(reader.folder / "runs" / "own")
    (resumed,) = (each for each in run.events if each["kind"] == "resumed")
    assert int(str(resumed["step"])) > 0
    assert numbers(r"finished: (\d+) samples", reader.output()) == [21_570, 4 * 1_438]
    assert min(numbers(r"accuracy ([\d.]+)", reader.output())) > 0.85
    assert "predicted [0, 1, 2, 3, 4] true [0, 1, 2, 3, 4]" in reader.output()
    assert (reader.folder / "own.pt").is_file()


def pinn(reader: Reader) -> None:
    adam, lbfgs = numbers(r"loss (\S+) after", reader.output())
    first, last = numbers(r"error (\S+)", reader.output())
    assert adam > 10 * lbfgs and first > 5 * last and last < 0.05
    assert (reader.folder / "burgers.svg").stat().st_size > 10_000


def three_machines(reader: Reader) -> None:
    fast, half, quarter = numbers(r"speed [\d.]+: (\d+) samples", reader.output("third"))
    assert fast > half > quarter > 0
    counts = dict(re.findall(r"samples (\w+): (\d+)", reader.output("second")))
    assert counts["counted"] == str(20 * 1_618) and counts["torn"] == counts["refused"] == "0"
    (accuracy,) = numbers(r"validation: ([\d.]+)% of 179 samples", reader.output("second"))
    assert accuracy > 90


def kill_anything(reader: Reader) -> None:
    shown = reader.output()
    counts = {name: int(count) for name, count in re.findall(r"samples (\w+): (\d+)", shown)}
    assert counts["counted"] == 80 * 1_618 == counts["handed_out"] - counts["lost"]
    assert counts["torn"] == counts["refused"] == 0
    assert "samples in all sums: 50158 50158" in shown and 31 * 1_618 == 50_158
    assert "the weights are equal to the bit: True" in shown
    assert numbers(r"epoch \d: (\d+) samples", shown) == [1_618] * 3
    assert len(re.findall(r"^killed \S+, process \d+$", reader.output("second") + shown, re.MULTILINE)) == 5


def partitioned_unet(reader: Reader) -> None:
    shown = reader.output()
    assert len(set(re.findall(r"loss (\S+),", shown))) == 1
    alone, *others = numbers(r"(\d+) MB for this step", shown)
    assert len(others) == 2 + 4 and max(others[:2]) < 0.9 * alone and max(others[2:]) < 0.5 * alone
    shares = numbers(r"([\d.]+)% of the pixels", shown)
    assert len(shares) == 3 and min(shares) > 95
    assert (reader.folder / "unet.svg").is_file()


def data_servers_ddp(reader: Reader) -> None:
    shown = reader.output("second")
    assert numbers(r"epoch \d+: (\d+) samples", shown) == [1_438] * 60
    assert numbers(r"accuracy ([\d.]+)", shown)[-1] > 0.85


CHECKS: dict[str, Callable[[Reader], None]] = {
    "first-run": first_run,
    "own-module": own_module,
    "pinn": pinn,
    "three-machines": three_machines,
    "kill-anything": kill_anything,
    "partitioned-unet": partitioned_unet,
    "data-servers-ddp": data_servers_ddp,
}


@pytest.mark.soak
@pytest.mark.parametrize("name", CHECKS)
def test_a_reader_sees_what_the_page_says(name: str, tmp_path: Path) -> None:
    CHECKS[name](followed(name, tmp_path))


def test_every_tutorial_is_tested_and_in_the_menu() -> None:
    assert sorted(each.stem for each in FOLDER.glob("*.md")) == sorted(TITLES) == sorted(CHECKS)
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (menu,) = (each["Tutorials"] for each in nav if "Tutorials" in each)
    assert menu[: len(TITLES)] == [f"tutorials/{name}.md" for name in TITLES]


@pages
def test_a_page_has_its_heading_steps_in_order_and_links_at_its_end(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {TITLES[name]}\n")
    found = [int(each) for each in re.findall(r"^## (\d+)\. ", text, flags=re.MULTILINE)]
    assert found == [*range(1, len(found) + 1)] and len(found) >= 4
    end = text.partition("\n## Where to go from here\n")[2]
    assert len(re.findall(r"\]\(\S+\)", end)) >= 2
    assert max(map(len, text.splitlines())) <= 128


@pages
def test_programs_of_a_page_compile(name: str) -> None:
    files: dict[str, str] = {}
    for step in steps(FOLDER / f"{name}.md"):
        if isinstance(step, Save):
            files[step.name] = (files.get(step.name, "") if step.is_appended else "") + step.text
    programs = [each for each in files if each.endswith(".py")]
    assert programs
    for each in programs:
        ast.parse(files[each], each)


@pages
def test_commands_of_a_page_exist_and_are_followed_by_what_they_print(name: str) -> None:
    found = list(steps(FOLDER / f"{name}.md"))
    typed = [step for step in found if isinstance(step, Type)]
    assert any(step.is_elsewhere for step in typed) == (name in ELSEWHERE)
    for typed_command in (each for step in typed for each in step.commands):
        command = re.sub(r"\\\n\s*", "", typed_command)
        for part in re.split(r"\n|; (?=chmod|do|done)", command):
            words = shlex.split(part, comments=True)
            assert words[0] in PROGRAMS | {"until", "do", "done"}, command
        if command.startswith("cotswold "):
            parses(command)
    shown = [step for step in found if isinstance(step, See)]
    assert shown and all(step.text.strip() for step in shown)
