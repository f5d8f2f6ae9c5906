"""`cotswold cluster`: long-running parameter servers, on one host or several.

Knows: the commands. Does not know: their implementation.
"""

from __future__ import annotations

from cyclopts import App

from cotswold.cli.cluster.admin import drain, explain, remove, status
from cotswold.cli.cluster.backup import backup, restore
from cotswold.cli.cluster.host import add, start
from cotswold.cli.cluster.recover import recover

app = App(
    name="cluster",
    help="Long-running parameter servers, on one host or several: docs/operations.md.",
    help_format="plaintext",
)
for each in (start, add, status, explain, drain, remove, backup, restore, recover):
    app.command(each)
