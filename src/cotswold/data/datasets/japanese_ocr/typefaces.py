"""Debian's typefaces for Japanese print, and the detection of installed ones.

Knows: packages, files and weights of designs; opening a face. Does not know: families (`families` compares
outlines), degradations.

Typefaces that imitate brushes and handwriting are excluded: the set is of machine print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

from cotswold.data.datasets.japanese_ocr.characters import narrow
from cotswold.errors import SourceError
from cotswold.files import home

_SYSTEM = Path("/usr/share/fonts")
_OF_USER = ".local/share/fonts"
"""Folders of typefaces, in addition to the user's; the second is relative to the user's home."""


@dataclass(frozen=True)
class Design:
    """A typeface as packaged: faces that differ only in weight."""

    name: str
    package: str
    files: tuple[str, ...]


DESIGNS = (
    Design("IPA Gothic", "fonts-ipafont-gothic", ("ipag.ttf",)),
    Design("Noto Serif CJK", "fonts-noto-cjk", ("NotoSerifCJK-Regular.ttc", "NotoSerifCJK-Bold.ttc")),
    Design(
        "M+ 1",
        "fonts-mplus",
        ("Mplus1-Light.otf", "Mplus1-Regular.otf", "Mplus1-Medium.otf", "Mplus1-Bold.otf"),
    ),
    Design("BIZ UD Mincho", "fonts-morisawa-bizud-mincho", ("BIZUDMincho-Regular.ttf",)),
    Design("Noto Sans CJK", "fonts-noto-cjk", ("NotoSansCJK-Regular.ttc", "NotoSansCJK-Bold.ttc")),
    Design("IPA Mincho", "fonts-ipafont-mincho", ("ipam.ttf",)),
    Design(
        "BIZ UD Gothic", "fonts-morisawa-bizud-gothic", ("BIZUDGothic-Regular.ttf", "BIZUDGothic-Bold.ttf")
    ),
    Design("Sawarabi Gothic", "fonts-sawarabi-gothic", ("sawarabi-gothic-medium.ttf",)),
    Design("Ume Mincho", "fonts-horai-umefont", ("ume-tmo3.ttf", "ume-tms3.ttf")),
    Design("Ume Gothic", "fonts-horai-umefont", ("ume-tgo4.ttf", "ume-tgo5.ttf")),
    Design("Motoya Cedar", "fonts-motoya-l-cedar", ("MTLc3m.ttf",)),
    Design("Sawarabi Mincho", "fonts-sawarabi-mincho", ("sawarabi-mincho-medium.ttf",)),
    Design("Konatu", "fonts-konatu", ("Konatu.ttf",)),
    Design("Oradano Mincho", "fonts-oradano-mincho-gsrr", ("OradanoGSRR.ttf",)),
    Design("Hanazono Mincho", "fonts-hanazono", ("HanaMinA.ttf",)),
    Design("IPAex Gothic", "fonts-ipaexfont-gothic", ("ipaexg.ttf",)),
    Design("IPAex Mincho", "fonts-ipaexfont-mincho", ("ipaexm.ttf",)),
    Design("IPAmj Mincho", "fonts-ipamj-mincho", ("ipamjm.ttf",)),
    Design("Takao Gothic", "fonts-takao-gothic", ("TakaoGothic.ttf",)),
    Design("Takao Mincho", "fonts-takao-mincho", ("TakaoMincho.ttf",)),
    Design("VL Gothic", "fonts-vlgothic", ("VL-Gothic-Regular.ttf",)),
    Design("MigMix 1P", "fonts-migmix", ("migmix-1p-regular.ttf", "migmix-1p-bold.ttf")),
    Design("Motoya Maruberi", "fonts-motoya-l-maruberi", ("MTLmr3m.ttf",)),
    Design("Monapo", "fonts-monapo", ("monapo.ttf",)),
    Design("Komatuna", "fonts-komatuna", ("komatuna.ttf",)),
    Design("MMCedar", "fonts-mmcedar", ("MMCedar.ttf",)),
    Design("UmePlus Gothic", "fonts-umeplus", ("umeplus-gothic.ttf",)),
)
"""Designs in the order that numbers the families, see `families.grouped`; a family has the name of its
first design.
"""


@dataclass(frozen=True)
class Face:
    """One weight of a design, in a file."""

    design: str
    file: Path

    @property
    def name(self) -> str:
        """Name of the face in messages."""
        return f"{self.design} ({self.file.name})"


def installed(folders: Sequence[Path] = ()) -> tuple[list[Face], list[Design]]:
    """Return the installed faces, in the order of `DESIGNS`, and the designs without an installed file."""
    files, place = dict[str, Path](), home()
    for folder in (*folders, _SYSTEM, *([] if place is None else [place / _OF_USER])):
        if folder in folders and not folder.is_dir():
            raise SourceError(f"{folder} is not a folder; give a folder with .ttf, .otf or .ttc files")
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.suffix.lower() in (".ttf", ".otf", ".ttc"):
                files.setdefault(path.name, path)
    faces = [Face(each.name, files[name]) for each in DESIGNS for name in each.files if name in files]
    found = {face.design for face in faces}
    return faces, [each for each in DESIGNS if each.name not in found]


@lru_cache(maxsize=64)
def open_face(file: Path, size: int) -> ImageFont.FreeTypeFont:
    """Open a face at ``size`` pixels per em; for a collection, its first face, which is Japanese in these
    files.

    Raises SourceError for a file that FreeType cannot read.
    """
    try:
        return ImageFont.truetype(str(file), size, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise SourceError(f"{file} cannot be read as a typeface ({error}); install it again") from error


def has_ink(font: ImageFont.FreeTypeFont, text: str) -> bool:
    """True if a face draws a text, other than as the box for missing characters."""
    mask, _ = font.getmask2(text)
    if mask.getbbox() is None:
        return False
    return (mask.size, bytes(mask)) != _missing_glyph(font)


@lru_cache(maxsize=64)
def _missing_glyph(font: ImageFont.FreeTypeFont) -> tuple[tuple[int, int], bytes]:
    """Return the drawing of a missing character, for an unassigned code point."""
    mask, _ = font.getmask2("\U0010fffd")
    return mask.size, bytes(mask)


def spelling(font: ImageFont.FreeTypeFont, character: str) -> str | None:
    """Return the text by which a face draws a class: the character, its half-width form, or None."""
    if has_ink(font, character):
        return character
    other = narrow(character)
    return other if other is not None and has_ink(font, other) else None
