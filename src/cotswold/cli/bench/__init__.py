"""`cotswold bench`: measurements of this machine.

Knows: the list of commands. Does not know: what any command does.
"""

from __future__ import annotations

from cyclopts import App

from cotswold.cli.bench.kernels import kernels
from cotswold.cli.bench.machine import machine
from cotswold.cli.bench.server import server

EPILOGUE = """\
Examples:

  cotswold bench kernels --quick                  small shapes, few rounds

  cotswold bench kernels --threads 1,2 --out .    write figures too

  cotswold bench machine --out mine.toml          for cotswold simulate

  cotswold bench server --only apply              updates of a parameter server

Cotswold's own scaling, disk and training loop: benchmarks/*.py in the source tree.
"""

app = App(
    name="bench",
    help="Measure this machine; keep it idle otherwise.",
    help_epilogue=EPILOGUE,
    help_format="plaintext",
)
app.command(kernels, help_epilogue="")
app.command(machine, help_epilogue="")
app.command(server, help_epilogue="")
