"""Users without a home, as in a container with an unknown user number."""

from __future__ import annotations

import importlib.util
import pwd
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold

from cotswold.data.datasets.japanese_ocr import typefaces
from cotswold.errors import UserError
from cotswold.files import expanded, home


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("homeless")
def test_the_home_of_a_user_without_one_is_an_error_that_names_the_path() -> None:
    assert home() is None
    with pytest.raises(UserError, match=r"^~/store begins with ~, but this user has no home; set HOME"):
        expanded("~/store")


def test_a_tilde_that_stands_for_no_user_is_part_of_a_name() -> None:
    assert expanded("~no-such-user/x") == Path("~no-such-user/x")


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize(
    "words",
    ["info ~/store", "prepare ~/images out", "prepare . ~/out", "data make ~/out"],
)
def test_commands_answer_a_user_without_a_home_in_a_sentence(words: str) -> None:
    Path("a.png").write_bytes(b"")
    said = cotswold(*words.split())
    assert said.status == 2
    assert "begins with ~, but this user has no home" in said.error


@pytest.mark.usefixtures("homeless")
def test_typefaces_of_the_system_are_found_without_a_home() -> None:
    found = typefaces.__spec__
    assert found is not None and found.loader is not None
    fresh = importlib.util.module_from_spec(found)
    found.loader.exec_module(fresh)
    faces, missing = fresh.installed()
    assert len(missing) + len({face.design for face in faces}) == len(fresh.DESIGNS)
