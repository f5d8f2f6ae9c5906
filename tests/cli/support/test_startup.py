"""Standard streams whose encoding lacks characters; a deleted working directory."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from tests.support.cli.command import cotswold

from cotswold.cli.main import main
from cotswold.cli.support.startup import prepare_streams, unprintable


def printed(encoding: str, *words: str) -> bytes:
    """Return the output of a command in an encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(stream), pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()


@pytest.mark.parametrize("words", ["recipe show demo", "recipe explain batch", "simulate --explain"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_escapes_what_an_encoding_lacks(words: str, encoding: str) -> None:
    whole, escaped = (printed(each, *words.split()) for each in ("utf-8", encoding))
    assert b"\\u03" in escaped
    assert escaped == whole.decode().encode(encoding, "backslashreplace")


def test_output_keeps_the_bytes_of_a_name_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    prepare_streams()
    stream.write("a\udcffb/λ")
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue() == b"a\xffb/" + "λ".encode()


def test_an_error_about_a_name_that_the_locale_lacks_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert "PYTHONUTF8=1" in unprintable("größe.npz does not exist")
    assert unprintable("size.npz does not exist") == ""


def test_a_working_directory_that_is_gone_is_answered_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    said = cotswold("recipe", "list")
    assert said.status == 2 and "the working directory was removed" in said.error
