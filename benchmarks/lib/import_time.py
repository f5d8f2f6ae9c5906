"""Start-up time of the library and the command.

Knows: processes and the clock. Does not know: what is imported.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from cotswold.bench.measure import Document, Spread, interleaved, ratios, rounded_all

HELP_SECONDS_MOST = 0.5
COMMANDS = {
    "python alone": [sys.executable, "-c", "pass"],
    "import cotswold": [sys.executable, "-c", "import cotswold"],
    "cotswold --help": [sys.executable, "-m", "cotswold.cli.main", "--help"],
}
_ASK = "import sys, cotswold; print('torch' in sys.modules)"


def import_times(rounds: int) -> Document:
    """Return seconds of an idle Python, of an import, and of the command's help, round by round."""
    samples = interleaved({name: _run(words) for name, words in COMMANDS.items()}, rounds)
    answer = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True).stdout
    return {
        "imports_torch": answer.strip() == "True",
        "most_accepted_seconds": {"cotswold --help": HELP_SECONDS_MOST},
        "spread_seconds": {name: Spread.from_samples(taken).as_dict() for name, taken in samples.items()},
        "of_python_alone": {
            name: ratios(taken, samples["python alone"]).as_dict() for name, taken in samples.items()
        },
        "seconds": {name: rounded_all(taken) for name, taken in samples.items()},
    }


def _run(words: list[str]) -> Callable[[], object]:
    return lambda: subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
