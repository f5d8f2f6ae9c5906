from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from cotswold.data.datasets.japanese_ocr import frequencies
from cotswold.data.datasets.japanese_ocr.characters import classes, group_of, groups, narrow
from cotswold.data.datasets.japanese_ocr.frequencies import (
    draw_classes,
    equal,
    most_frequent,
    natural,
    ranking,
)
from cotswold.errors import UserError


def nowhere(tmp_path: Path, seed: int = 0) -> frequencies.Ranking:
    return ranking(seed, tmp_path / "none", tmp_path / "none")


def test_there_are_3203_classes_of_the_groups_that_the_set_is_made_of() -> None:
    counts = {group: len(these) for group, these in groups().items()}
    assert counts["hiragana"] + counts["katakana"] == 169
    assert counts["digits"] + counts["latin"] == 62
    assert (counts["kanji"], counts["signs"]) == (2965, 7)
    assert len(classes()) == len(set(classes())) == len(group_of()) == 3203
    assert groups()["kanji"][0] == "亜" and groups()["kanji"][-1] == "腕"


def test_only_full_width_forms_have_narrow_ones() -> None:
    assert [narrow(each) for each in "Ａｚ０"] == ["A", "z", "0"]
    assert narrow("亜") is None and narrow("ー") is None


def test_natural_frequencies_are_very_unequal_and_leave_no_character_out(tmp_path: Path) -> None:
    counts = natural(nowhere(tmp_path).order, 168_000)
    assert counts.sum() == 168_000 and counts.min() == 1
    assert ((counts == 1) | (counts == 2)).sum() > 500
    assert counts.max() > 3000
    assert len(most_frequent(counts, 0.4)) < 60


def test_kanji_are_as_unequal_as_in_newspapers(tmp_path: Path) -> None:
    """The first 1,000 kanji have 94.1 % and 2,000 have 99.7 %; one original of each rare kanji costs some."""
    kanji = np.array(group_of()) == "kanji"
    counts = np.sort(natural(nowhere(tmp_path).order, 10_000_000)[kanji])[::-1]
    assert abs(counts[:1000].sum() / counts.sum() - 0.95) < 0.02
    assert abs(counts[:2000].sum() / counts.sum() - 0.996) < 0.003


def test_groups_have_the_shares_of_running_text(tmp_path: Path) -> None:
    counts = natural(nowhere(tmp_path).order, 10_000_000)
    for group, share in frequencies.SHARES.items():
        mine = np.array(group_of()) == group
        assert abs(100 * counts[mine].sum() / counts.sum() - share) < 0.3, group


def test_equal_frequencies_differ_by_one_at_most() -> None:
    counts = equal(168_000)
    assert counts.sum() == 168_000 and set(counts.tolist()) == {52, 53}


def test_as_many_originals_as_classes_are_one_each(tmp_path: Path) -> None:
    assert (natural(nowhere(tmp_path).order, 3203) == 1).all()


def test_fewer_originals_than_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3,203"):
        natural(nowhere(tmp_path).order, 3202)


def test_newspaper_ranks_come_first_then_counts_in_texts_then_chance(tmp_path: Path) -> None:
    dictionary, texts = tmp_path / "kanjidic", tmp_path / "man"
    dictionary.write_bytes(
        "# comment\n腕 4D53 U8155 B1 F2 J1 Wan\n湾 4D51 F1 Wan\n亜 3021 Fx\n".encode("euc_jp")
    )
    texts.mkdir()
    (texts / "page.1.gz").write_bytes(gzip.compress("ぬぬぬ碗碗あ latin".encode()))
    (texts / "damaged.1.gz").write_bytes(b"\x1f\x8bnothing")
    found = ranking(0, dictionary, texts)
    assert found.order["kanji"].startswith("湾腕碗")
    assert found.order["hiragana"].startswith("ぬあ")
    assert sorted(found.order["kanji"]) == sorted(groups()["kanji"])
    assert "2 kanji" in found.origin and "6 characters" in found.origin


def test_what_would_rank_the_characters_better_is_named(tmp_path: Path) -> None:
    found = nowhere(tmp_path)
    assert "apt install kanjidic" in found.origin and "apt install manpages-ja" in found.origin
    assert found.order == nowhere(tmp_path).order != nowhere(tmp_path, seed=1).order


def test_the_commonest_are_the_fewest_that_make_the_share() -> None:
    assert most_frequent(np.array([1, 5, 3, 1]), 0.4).tolist() == [1]
    assert most_frequent(np.array([1, 5, 3, 1]), 0.51).tolist() == [1, 2]
    assert sorted(most_frequent(np.array([1, 5, 3, 1]), 1.0).tolist()) == [0, 1, 2, 3]
    for wrong in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="share must be above 0"):
            most_frequent(np.array([1]), wrong)


def test_held_out_samples_are_spread_as_the_originals() -> None:
    counts = np.array([0, 10, 30])
    found = np.bincount(draw_classes(counts, 20_000, 1), minlength=3) / 20_000
    assert np.allclose(found, [0, 0.25, 0.75], atol=0.02)
