"""The reader of tutorials notices what a page promises and does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tutorials.page import PageError, Press, Save, See, Type, steps
from tests.support.tutorials.reader import Reader

SAVE = 'Save this as `hello.py`:\n\n```python\nprint("three", 3)\n```\n\n'
SLEEP = "In a second terminal, start it. Leave it running:\n\n```sh\nsleep 60\n```\n\n"


def follow(text: str, tmp_path: Path) -> Reader:
    folder = tmp_path / "folder"
    folder.mkdir(parents=True)
    page = tmp_path / "page.md"
    page.write_text(text)
    reader = Reader(folder)
    reader.follow(page)
    return reader


def test_numbers_stand_for_others_and_words_for_themselves(tmp_path: Path) -> None:
    reader = follow(f"{SAVE}Type:\n\n```sh\necho three 4\n```\n\n```text\nthree 3\n```\n", tmp_path)
    assert (reader.folder / "hello.py").read_text() == 'print("three", 3)\n'
    assert reader.output() == "three 4\n"


def test_another_output_fails_with_the_line_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:9: not shown: four"):
        follow("Type:\n\n```sh\necho three 3\n```\n\n```text\nfour 3\n```\n", tmp_path)


def test_lines_in_another_order_fail(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not shown"):
        follow("Type:\n\n```sh\necho a\necho b\n```\n\n```text\nb\na\n```\n", tmp_path)


@pytest.mark.parametrize("end", ["", "\n```sh\necho later\n```\n"])
def test_a_command_that_fails_fails_the_test(end: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit status 3"):
        follow(f"Type:\n\n```sh\n(exit 3)\n```\n{end}", tmp_path)


def test_ctrl_c_ends_a_command_and_another_terminal_has_an_environment_of_its_own(tmp_path: Path) -> None:
    text = "```sh\nexport WORD=first\n```\n\n" + SLEEP + "Press Ctrl-C in the second terminal.\n\n"
    text += 'In the first terminal:\n\n```sh\necho "$WORD"\n```\n\n'
    text += 'In a second terminal:\n\n```sh\necho "<$WORD>"\n```\n\n```text\n<>\n```\n'
    reader = follow(text, tmp_path)
    assert reader.output("first").endswith("first\n")


def test_a_killed_command_is_expected_where_the_page_shows_it(tmp_path: Path) -> None:
    killed = "```sh\nbash -c 'kill -9 $$'\n```\n\n"
    follow(f"{killed}```text\nKilled\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="exit status 137"):
        follow(killed, tmp_path / "again")


def test_a_command_may_show_lines_before_it_is_killed_but_its_successor_must_succeed(tmp_path: Path) -> None:
    text = "```sh\nbash -c 'echo alive; kill -9 $$'\n```\n\n```text\nalive\n```\n\n"
    text += "Then:\n\n```text\nKilled\n```\n\n"
    follow(f"{text}```sh\ntrue\ntrue\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="exit status 137"):
        follow(f"{text}```sh\n(exit 137)\n```\n", tmp_path / "again")


def test_commands_of_other_hosts_and_installations_are_not_run(tmp_path: Path) -> None:
    follow("Type:\n\n```sh\npip install nothing-at-all\n```\n\nOn host2:\n\n```sh\nfalse\n```\n", tmp_path)


def test_a_port_is_the_same_free_one_in_all_blocks(tmp_path: Path) -> None:
    text = "```sh\necho 127.0.0.1:7400\n```\n\n```text\n127.0.0.1:7400\n```\n\n"
    reader = follow(f"{text}Save this as `a.toml`:\n\n```toml\nport = '127.0.0.1:7400'\n```\n", tmp_path)
    port = reader.output().strip()
    assert port != "127.0.0.1:7400" and port in (reader.folder / "a.toml").read_text()


def test_a_program_without_the_name_of_its_file_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Look at this:\n\n```python\nprint(1)\n```\n")
    with pytest.raises(PageError, match=r"page\.md:5"):
        list(steps(page))


def test_steps_are_those_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{SAVE}Append this to `hello.py`:\n\n```python\nprint(4)\n```\n\n{SLEEP}")
    kinds = [type(each) for each in steps(page)]
    assert kinds == [Save, Save, Type]
    first, second, typed = steps(page)
    assert isinstance(first, Save) and not first.is_appended
    assert isinstance(second, Save) and second.is_appended and second.name == "hello.py"
    assert isinstance(typed, Type) and typed.terminal == "second"
    page.write_text("Press Ctrl-C in the third terminal. It shows:\n\n```text\nend\n```\n")
    pressed, seen = steps(page)
    assert isinstance(pressed, Press) and pressed.terminal == "third"
    assert isinstance(seen, See) and seen.terminal == "third"
