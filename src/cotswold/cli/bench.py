"""`cotswold bench`: measurements of this machine.

Knows: the list of commands. Does not know: what any command does.
"""

from __future__ import annotations

from cyclopts import App

from cotswold.cli.bench_kernels import kernels
from cotswold.cli.bench_machine import machine

app = App(
    name="bench",
    help="Measure this machine; leave it alone meanwhile.",
    help_format="plaintext",
)
app.command(kernels)
app.command(machine)
