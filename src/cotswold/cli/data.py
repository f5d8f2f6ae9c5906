"""`cotswold data`: data that Cotswold generates, and augmented samples.

Knows: the arguments of the command. Does not know: how images are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(
    name="data",
    help="Write the demo's images as files; render the Japanese print data set; show augmented images.",
    help_format="plaintext",
)


make = App(name="make", help_format="plaintext")
app.command(make)


@make.default
def demo(out: Path) -> None:
    """Write the images of the demonstration as files, to view or to try commands with.

    They are crops of photographs and faces that ship with scikit-image and
    scikit-learn (pip install '.[demo]' in a checkout of Cotswold).

    For instance:

      cotswold data make demo-images
      cotswold data make japanese-ocr

    Parameters
    ----------
    out
        The folder to write, with one folder each for demo, demo-faces and demo-distractors. It must be new or
        empty, or left by a killed command, which is then completed.
    """
    from cotswold.data import write_demo
    from cotswold.ui.terminal import progress_bar

    with progress_bar("writing", "images") as advance:
        written = write_demo(out, advance)
    for name, images in written.items():
        print(f"{out / name}: {images} images")


@make.command(name="japanese-ocr")
def japanese_ocr(
    out: Path = Path("japanese-ocr"),
    *,
    samples: int = 9_264_000,
    originals: int = 168_000,
    held_out: int = 6_320,
    frequencies: Literal["natural", "equal"] = "natural",
    held_family: Annotated[list[str] | None, Parameter(negative=())] = None,
    fonts: Annotated[list[Path] | None, Parameter(negative=())] = None,
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Render machine-printed Japanese: 3203 characters, 20 x 20 grey.

    Scans are rendered with the installed typefaces (the command lists missing ones,
    and how to install them). Training samples are generated from scans when they are
    read: thickened, thinned, shifted, blurred, with noise. Three parts are held out:
    other scans, scans with unseen degradations, and scans of whole families of
    typefaces. OUT/sheets has images to view. The same command continues after a kill.

    Examples:

      cotswold data make japanese-ocr
      cotswold data make japanese-ocr small-ocr --originals 3203 --held-out 500 --samples 20000
      cotswold data make japanese-ocr equal-ocr --frequencies equal

    Parameters
    ----------
    out
        The folder to write.
    samples
        Number of training samples, scans included. Another number can be read by OUT:NUMBER. Samples take no
        time until they are read; scans do.
    originals
        Number of scans that training samples are generated from; at least 3203. Fewer make a small set
        quickly.
    held_out
        Number of scans in each held-out part.
    frequencies
        natural: as in Japanese text, with some characters once or twice; equal: all equally often.
    held_family
        A family of typefaces that is held out; may be given again. Default: every fourth.
    fonts
        A folder with typefaces, in addition to the system's; may be given again.
    seed
        Seed of all random choices.
    jobs
        Number of processes. Default: all cores.
    """
    from cotswold.data.datasets.japanese_ocr import Request, make
    from cotswold.ui.terminal import printable, progress_bar

    request = Request(
        seed=seed,
        originals=originals,
        held_out=held_out,
        samples=samples,
        frequencies=frequencies,
        held_families=tuple(held_family or ()),
    )
    with progress_bar("printing", "scans") as advance:
        made = make(out, request, fonts=fonts or (), jobs=jobs, progress=advance)
    counts = made.frequencies
    print(
        f"{out}: {made.originals:,} originals of {int((counts > 0).sum()):,} characters, "
        f"{int(((counts > 0) & (counts < 3)).sum()):,} of them once or twice; {request.samples:,} samples; "
        f"{request.held_out:,} scans in each of validation, degradations and families"
    )
    for note in made.notes:
        print(printable(note))
    print(f"images to view: {out / 'sheets'}")


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
    """Draw training images with augmented variants, one image per row.

    The first column is the prepared image, the next ones are its variants in the first
    epochs of training, by the recipe's [[data.augment]] and training.seed. Images are
    prepared first if necessary.

    Examples:

      cotswold data augment my.toml --out sheet.png
      cotswold data augment my.toml --out sheet.png --samples 4 --variants 12

    Parameters
    ----------
    recipe
        A recipe file, or the name of a shipped recipe.
    out
        The PNG file to write; an existing one is replaced.
    set
        Override a field, as in data.source=photographs.zip; may be given again.
    samples
        Number of images, the first ones of the training split.
    variants
        Number of variants of each image.
    stores
        Folder for prepared images.
    """
    from io import BytesIO

    from cotswold.analysis import sheet_of_variants
    from cotswold.errors import MachineError, UserError
    from cotswold.files import disk_errors, replace_file
    from cotswold.recipe import load
    from cotswold.training import open_store
    from cotswold.training.data.augmentation import augmentation_of
    from cotswold.ui.terminal import progress_bar, write_message

    if out.suffix.lower() != ".png":
        raise UserError(f"--out must be a .png file, got {out}")
    for name, count in (("--samples", samples), ("--variants", variants)):
        if not 1 <= count <= 100:
            raise UserError(f"{name} must be from 1 to 100, got {count}")
    chosen = load(recipe, set or [], write_message)
    with progress_bar("preparing", chosen.data.type) as advance:
        store = open_store(chosen, stores, advance)
    augmentation = augmentation_of(chosen, store)
    if augmentation is None:
        raise UserError(
            f"{chosen.name} has no augmentation; give it [[data.augment]] tables, see docs/augmentation.md"
        )
    content = BytesIO()
    sheet_of_variants(store, augmentation, chosen.training.seed, samples, variants).save(content, "PNG")
    with disk_errors(out, MachineError, "free some"):
        replace_file(out, content.getvalue())
    print(f"{out}: the first training images of {chosen.name}, unchanged and in {variants} epochs")
