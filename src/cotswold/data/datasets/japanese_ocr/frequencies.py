"""Frequency of each character among the originals.

Knows: the law, the fractions of groups, the ranking of characters. Does not know: typefaces, images.

No corpus is copied. The *law* is stated here; only the *order* of the characters in a group comes from
installed files: newspaper ranks of kanji (Debian's `kanjidic`, field F) and counts in Japanese manual pages.

The fractions of groups are those of a year of a newspaper (Chikamatsu et al. 2000, Behavior Research Methods
32, 482-500). Inside a group the r-th of n characters has the weight exp(-5 x) / (x + c), x = r / n: Zipf's
law with a flat top and an exponential tail (digits and signs: 1 / (x + 1)). Of kanji (c = 1/30) the first
1,000 are 95.7 % of the text and the first 2,000 are 99.6 %; in newspapers of 1966 they were 94.1 % and 99.7 %
(National Language Research Institute 1971).
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets.japanese_ocr.characters import Group, classes, groups
from cotswold.errors import SourceError, UserError

SHARES: dict[Group, float] = {
    "kanji": 41.38,
    "hiragana": 36.62,
    "katakana": 6.38,
    "digits": 2.07,
    "latin": 0.46,
    "signs": 13.09,
}
"""Per cent of running text. There are more signs than our seven, which receive the whole fraction."""
_DECAY = 5.0
_FLAT: dict[Group, float] = {"kanji": 1 / 30}
_FLAT_SMALL = 1 / 6
"""`c` of kana and Latin, whose first character leads by less."""
_CLOSED: tuple[Group, ...] = ("digits", "signs")
"""Groups in which all characters are common; their law is 1 / (x + 1)."""

KANJIDIC = Path("/usr/share/edict/kanjidic")
TEXTS = Path("/usr/share/man/ja")
_TEXT_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Ranking:
    """The characters of each group, most frequent first, and a sentence on the origin of the order."""

    order: dict[Group, str]
    origin: str


def ranking(seed: int, kanjidic: Path | None = None, texts: Path | None = None) -> Ranking:
    """Rank by newspapers, then by manual pages, then randomly by ``seed`` (ties and missing files)."""
    kanjidic, texts = kanjidic or KANJIDIC, texts or TEXTS
    newspaper = _newspaper_frequency_ranks(kanjidic)
    counts = _counts(texts)
    chance = np.random.default_rng([seed, 0x4A49]).permutation(len(classes())).tolist()
    place = dict(zip(classes(), chance, strict=True))
    last = len(newspaper) + 1
    order: dict[Group, str] = {
        group: "".join(sorted(these, key=lambda c: (newspaper.get(c, last), -counts[c], place[c])))
        for group, these in groups().items()
    }
    told = [f"newspaper ranks of {len(newspaper):,} kanji ({kanjidic})"] if newspaper else []
    told += [f"counts of {counts.total():,} characters ({texts})"] if counts else []
    missing = "" if newspaper else "; `apt install kanjidic` gives newspaper ranks of kanji"
    missing += "" if counts else "; `apt install manpages-ja` gives counts of kana"
    return Ranking(order, (" and ".join(told) or "chance, by the seed") + missing)


def natural(order: dict[Group, str], originals: int) -> NDArray[np.int64]:
    """Return the originals of each class (class,) as in natural text, at least one.

    Raises UserError if there are fewer originals than classes.
    """
    weight = dict[str, float]()
    for group, these in order.items():
        x = np.arange(1, len(these) + 1) / len(these)
        law = np.exp(-_DECAY * x) / (x + _FLAT.get(group, _FLAT_SMALL))
        if group in _CLOSED:
            law = 1 / (x + 1)
        weight |= dict(zip(these, (SHARES[group] * law / law.sum()).tolist(), strict=True))
    return _apportion(np.array([weight[each] for each in classes()]), originals)


def equal(originals: int) -> NDArray[np.int64]:
    """Return equally many originals of each class, up to a difference of one."""
    return _apportion(np.ones(len(classes())), originals)


def draw_classes(frequencies: NDArray[np.int64], samples: int, seed: int) -> NDArray[np.int64]:
    """Draw classes of held-out samples (sample,) with the frequencies of the originals."""
    random = np.random.default_rng([seed, 0x4854])
    return random.choice(len(frequencies), samples, p=frequencies / frequencies.sum()).astype(np.int64)


def _apportion(weights: NDArray[np.float64], originals: int) -> NDArray[np.int64]:
    """Return integers that sum to ``originals``, proportional to the weights, at least 1 each."""
    if originals < len(weights):
        raise UserError(f"{originals:,} originals are fewer than the {len(weights):,} classes; give more")
    wanted = weights / weights.sum() * originals
    rare = wanted < 1
    while True:  # the others give what rare classes receive beyond their share, so more may become rare
        scaled = wanted * (originals - rare.sum()) / wanted[~rare].sum()
        more = ~rare & (scaled < 1)
        if not more.any():
            break
        rare |= more
    scaled[rare] = 1
    counts: NDArray[np.int64] = np.floor(scaled).astype(np.int64)
    left = originals - int(counts.sum())
    counts[np.argsort(counts - scaled, kind="stable")[:left]] += 1
    assert counts.sum() == originals and counts.min() >= 1
    return counts


def _newspaper_frequency_ranks(kanjidic: Path) -> dict[str, int]:
    """Read ranks of kanji from field F of a kanjidic file; empty if there is no file."""
    if not kanjidic.exists():
        return {}
    ranks = dict[str, int]()
    try:
        for line in kanjidic.read_text("euc_jp", "replace").splitlines():
            fields = line.split()
            rank = next((each[1:] for each in fields if each[0] == "F" and each[1:].isdigit()), None)
            if rank is not None:
                ranks[fields[0]] = int(rank)
    except OSError as error:
        raise SourceError(f"{kanjidic} cannot be read: {error.strerror}; repair or remove it") from error
    return ranks


def _counts(folder: Path) -> Counter[str]:
    """Count the classes in the compressed texts below a folder, up to a bound on their size."""
    found, left = Counter[str](), _TEXT_BYTES_MAX
    wanted = set(classes())
    for path in _files(folder):
        try:
            text = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error):
            continue  # one damaged page does not change the order noticeably
        left -= len(text)
        if left < 0:
            break
        found.update(each for each in text.decode("utf-8", "ignore") if each in wanted)
    return found


def _files(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.glob("**/*.gz") if path.is_file()) if folder.is_dir() else ()


def most_frequent(counts: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Return the smallest set of classes that makes up ``share`` of the originals.

    For 0.4, that is the paper's "40 % of the data which contained the most examples of individual
    characters".
    """
    if not 0 < share <= 1 or math.isnan(share):
        raise UserError(f"share must be above 0 and at most 1, got {share}")
    order = np.argsort(-counts, kind="stable")
    needed = int(np.searchsorted(np.cumsum(counts[order]), share * counts.sum() - 1e-9)) + 1
    return order[:needed].astype(np.int64)
