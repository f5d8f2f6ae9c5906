"""`cotswold data`: data that Cotswold makes itself.

Knows: the words of the command. Does not know: how pictures are made.
"""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="data", help="Write the demo's pictures as files.", help_format="plaintext")


@app.command
def make(out: Path) -> None:
    """Write the pictures of the demonstration as files, to look at or to try commands on.

    They are cut from photographs and faces that ship inside scikit-image and
    scikit-learn (pip install 'cotswold[demo]').

    For instance:

      cotswold data make demo-pictures

    Parameters
    ----------
    out
        The folder to write, with a folder for each of demo, demo-faces and demo-distractors. It must be new
        or empty, or what a killed command left: that is completed.
    """
    from cotswold.api.progress import counting
    from cotswold.data import write_demo

    with counting("writing", "pictures") as advance:
        written = write_demo(out, advance)
    for name, pictures in written.items():
        print(f"{out / name}: {pictures} pictures")
