"""`cotswold cluster`: parameter servers that outlive runs, on one host or several.

Knows: the words of the commands. Does not know: how anything is done.
"""

from __future__ import annotations

from cyclopts import App

from cotswold.cli.cluster_start import add, start

app = App(name="cluster", help_format="plaintext")
app.command(start)
app.command(add)
