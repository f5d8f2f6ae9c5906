"""`cotswold data`: data that Cotswold makes itself, and what augmentation makes of data.

Knows: the words of the command. Does not know: how pictures are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(
    name="data",
    help="Write the demo's pictures as files; render the set of Japanese print; look at augmented pictures.",
    help_format="plaintext",
)


make = App(name="make", help_format="plaintext")
app.command(make)


@make.default
def demo(out: Path) -> None:
    """Write the pictures of the demonstration as files, to look at or to try commands on.

    They are cut from photographs and faces that ship inside scikit-image and
    scikit-learn (pip install '.[demo]' in a checkout of Cotswold).

    For instance:

      cotswold data make demo-pictures
      cotswold data make japanese-ocr

    Parameters
    ----------
    out
        The folder to write, with a folder for each of demo, demo-faces and demo-distractors. It must be new
        or empty, or what a killed command left: that is completed.
    """
    from cotswold.data import write_demo
    from cotswold.ui.progress import counting

    with counting("writing", "pictures") as advance:
        written = write_demo(out, advance)
    for name, pictures in written.items():
        print(f"{out / name}: {pictures} pictures")


@make.command(name="japanese-ocr")
def japanese_ocr(
    out: Path = Path("japanese-ocr"),
    *,
    patterns: int = 9_264_000,
    originals: int = 168_000,
    held_out: int = 6_320,
    frequencies: Literal["natural", "equal"] = "natural",
    held_family: Annotated[list[str] | None, Parameter(negative=())] = None,
    fonts: Annotated[list[Path] | None, Parameter(negative=())] = None,
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Render machine-printed Japanese: 3203 characters, 20 x 20 grey.

    Scans are printed from the typefaces that are installed (the command says
    which are not, and how to install them). Training patterns are made of them
    when they are read: thickened, thinned, shifted, blurred, with noise. Three
    parts are held out: other scans, scans with unseen degradations, and scans of
    whole families of typefaces. Pictures to look at are in OUT/sheets. The same
    command after a kill goes on where it stopped.

    For instance:

      cotswold data make japanese-ocr
      cotswold data make japanese-ocr small-ocr --originals 3203 --held-out 500 --patterns 20000
      cotswold data make japanese-ocr equal-ocr --frequencies equal

    Parameters
    ----------
    out
        The folder to write.
    patterns
        Training patterns, the scans among them. Another number can be read by OUT:NUMBER. They cost nothing
        until they are read: it is the scans that take time.
    originals
        Scans that training patterns are made of; at least 3203. Fewer make a small set quickly.
    held_out
        Scans in each held-out part.
    frequencies
        natural: as in Japanese text, with some characters once or twice; equal: all as often.
    held_family
        A family of typefaces that is never trained on; may be given again. Every fourth by default.
    fonts
        A folder with typefaces, besides those of the system; may be given again.
    seed
        Seed of everything that is drawn.
    jobs
        Processes; all cores by default.
    """
    from cotswold.data.datasets.japanese_ocr import Request, make
    from cotswold.ui.progress import counting, printable

    request = Request(
        seed=seed,
        originals=originals,
        held_out=held_out,
        patterns=patterns,
        frequencies=frequencies,
        held_families=tuple(held_family or ()),
    )
    with counting("printing", "scans") as advance:
        made = make(out, request, fonts=fonts or (), jobs=jobs, progress=advance)
    counts = made.frequencies
    print(
        f"{out}: {made.originals:,} originals of {int((counts > 0).sum()):,} characters, "
        f"{int(((counts > 0) & (counts < 3)).sum()):,} of them once or twice; {request.patterns:,} patterns; "
        f"{request.held_out:,} scans in each of validation, degradations and families"
    )
    for note in made.notes:
        print(printable(note))
    print(f"look at {out / 'sheets'}")


@app.command
def augment(
    recipe: str,
    *,
    out: Path,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    samples: int = 8,
    variants: int = 8,
    stores: Path = Path("stores"),
) -> None:
    """Draw training pictures beside their variants, one picture a row.

    The first column is the picture as it is prepared, the next ones are what the
    first epochs of training learn from, by the recipe's [[data.augment]] and
    training.seed. Pictures are prepared if they are not yet.

    For instance:

      cotswold data augment my.toml --out sheet.png
      cotswold data augment my.toml --out sheet.png --samples 4 --variants 12

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe.
    out
        The picture to write, a PNG file; one that is there is replaced.
    set
        Overrides a field, as in data.source=photographs.zip; may be given again.
    samples
        Pictures, the first ones of the training split.
    variants
        Variants of each.
    stores
        Where prepared pictures are kept; they are made if they are not there.
    """
    from io import BytesIO

    from cotswold.analysis import sheet_of_variants
    from cotswold.errors import MachineError, UserError
    from cotswold.files import disk_errors, replace_file
    from cotswold.recipe import load
    from cotswold.training import open_store
    from cotswold.training.data.varying import varying_of
    from cotswold.ui.progress import counting, say

    if out.suffix.lower() != ".png":
        raise UserError(f"--out {out}: give the name of a .png file")
    for name, count in (("--samples", samples), ("--variants", variants)):
        if not 1 <= count <= 100:
            raise UserError(f"{name} {count}: 1 to 100")
    chosen = load(recipe, set or [], say)
    with counting("preparing", chosen.data.type) as advance:
        store = open_store(chosen, stores, advance)
    varying = varying_of(chosen, store)
    if varying is None:
        raise UserError(
            f"{chosen.name} augments nothing; give it [[data.augment]] tables, see docs/augmentation.md"
        )
    content = BytesIO()
    sheet_of_variants(store, varying, chosen.training.seed, samples, variants).save(content, "PNG")
    with disk_errors(out, MachineError, "free some"):
        replace_file(out, content.getvalue())
    print(f"{out}: the first training pictures of {chosen.name}, as they are and in {variants} epochs")
