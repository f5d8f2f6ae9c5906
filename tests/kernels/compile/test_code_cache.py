from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from cotswold.kernels.compile import code_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of this test."""
    place = tmp_path / "deep" / "cache"
    monkeypatch.setenv("COTSWOLD_CACHE", str(place))
    code_cache._WARNED_DIRECTORIES.clear()
    return place


def test_a_cached_kernel_is_loaded(cache: Path) -> None:
    assert code_cache.load("a.o") is None
    code_cache.save("a.o", b"code")
    assert code_cache.load("a.o") == b"code"
    assert [one.name for one in cache.iterdir()] == ["a.o"]
    assert cache.stat().st_mode & 0o077 == 0


def test_it_lies_in_the_users_cache_directory_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTSWOLD_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert code_cache.folder() == Path("/somewhere/cotswold")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert code_cache.folder() == Path.home() / ".cache" / "cotswold"


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: b"",
        lambda told: told[:20],
        lambda told: told[:-1],
        lambda told: told + b"\0",
        lambda told: told[:40] + bytes([told[40] ^ 1]) + told[41:],
        lambda told: bytes(len(told)),
    ],
    ids=["emptied", "cut in its sum", "cut", "longer", "one bit", "zeros"],
)
def test_what_is_damaged_is_as_if_it_were_not_there(cache: Path, damage: Callable[[bytes], bytes]) -> None:
    code_cache.save("a.o", b"code" * 100)
    (cache / "a.o").write_bytes(damage((cache / "a.o").read_bytes()))
    assert code_cache.load("a.o") is None
    code_cache.save("a.o", b"code")
    assert code_cache.load("a.o") == b"code"


def test_the_folder_may_be_deleted_at_any_time(cache: Path) -> None:
    code_cache.save("a.o", b"code")
    shutil.rmtree(cache)
    assert code_cache.load("a.o") is None
    code_cache.save("a.o", b"code")
    assert code_cache.load("a.o") == b"code"


def test_a_file_in_the_place_of_the_deleted_folder_does_no_harm(cache: Path) -> None:
    code_cache.save("a.o", b"code")
    shutil.rmtree(cache)
    cache.write_bytes(b"")
    warned_once(used, str(cache))


def test_a_link_in_the_folder_is_neither_read_nor_written_through(cache: Path, tmp_path: Path) -> None:
    code_cache.save("a.o", b"code")
    elsewhere = tmp_path / "elsewhere"
    (cache / "a.o").rename(elsewhere)
    (cache / "a.o").symlink_to(elsewhere)
    assert code_cache.load("a.o") is None
    before = elsewhere.read_bytes()
    code_cache.save("a.o", b"other code")
    assert elsewhere.read_bytes() == before
    assert code_cache.load("a.o") == b"other code"


def aged(file: Path, days: float) -> None:
    """Set the age of a file."""
    then = time.time() - days * 86400
    os.utime(file, (then, then))


EDITION = "0123456789abcdef"


def test_long_unread_files_are_removed_at_the_next_write(cache: Path) -> None:
    old, read, young = (f"{name}-float32-8x3-{EDITION}.o" for name in ("old", "read", "young"))
    choice, unfinished = f"old-float32-1-1-1-0-{EDITION}.json", f"{young}.1.01234567.partial"
    for name in (old, read, young, choice, unfinished):
        code_cache.save(name, b"content")
    for name in (old, choice, read):
        aged(cache / name, code_cache.UNREAD_DAYS_MOST + 1)
    aged(cache / young, code_cache.UNREAD_DAYS_MOST - 1)
    aged(cache / unfinished, code_cache.UNFINISHED_DAYS_MOST + 1)
    assert code_cache.load(read) == b"content"
    code_cache.save("new.o", b"content")
    assert sorted(one.name for one in cache.iterdir()) == ["new.o", read, young]


def test_files_of_others_in_the_folder_stay_however_old_they_are(cache: Path) -> None:
    code_cache.save("a.o", b"code")
    theirs = ("main.o", "package.json", "thesis.partial", f"results {EDITION}.json", f"{EDITION}.o")
    for name in theirs:
        (cache / name).write_bytes(b"of somebody else")
        aged(cache / name, 1000)
    code_cache.save("b.o", b"code")
    assert {one.name for one in cache.iterdir()} == {"a.o", "b.o", *theirs}


def warned_once(act: Callable[[], object], words: str) -> None:
    """Check that an act, done three times, gives one warning with these words."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            act()
    assert [one.category for one in told] == [RuntimeWarning]
    assert words in str(told[0].message)


def used() -> None:
    code_cache.save("a.o", b"code")
    assert code_cache.load("a.o") is None


def test_a_folder_that_cannot_be_made_is_named_once(cache: Path) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_bytes(b"a file")
    warned_once(used, str(cache))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_not_read(cache: Path, mode: int) -> None:
    code_cache.save("b.o", b"code of theirs")
    cache.chmod(mode)
    code_cache._WARNED_DIRECTORIES.clear()
    warned_once(used, "other users can write to it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert code_cache.load("b.o") is None


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_of_someone_else_is_not_read(cache: Path) -> None:
    code_cache.save("b.o", b"code of theirs")
    os.chown(cache, 65534, 65534)
    code_cache._WARNED_DIRECTORIES.clear()
    warned_once(used, str(cache))


def test_a_folder_that_others_make_again_after_its_deletion_is_not_read(cache: Path) -> None:
    code_cache.save("a.o", b"code")
    content = (cache / "a.o").read_bytes()
    shutil.rmtree(cache)
    cache.mkdir()
    cache.chmod(0o777)
    (cache / "a.o").write_bytes(content)
    with pytest.warns(RuntimeWarning, match="other users can write to it"):
        assert code_cache.load("a.o") is None


def test_a_user_without_a_home_directory_is_warned_once_and_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("COTSWOLD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    code_cache._WARNED_DIRECTORIES.clear()
    warned_once(used, "has no home")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_that_others_can_replace_is_not_read(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "shared"
    above.mkdir()
    monkeypatch.setenv(code_cache.VARIABLE, str(above / "mine" / "cache"))
    monkeypatch.setattr(code_cache, "_WARNED_DIRECTORIES", set())
    code_cache.save("one", b"code")
    assert code_cache.load("one") == b"code"
    above.chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"other users can write to {above}"):
        assert code_cache.load("one") is None
    monkeypatch.setattr(code_cache, "_WARNED_DIRECTORIES", set())
    above.chmod(mode | 0o1000)  # as /tmp: each may move only what is theirs
    assert code_cache.load("one") == b"code"
