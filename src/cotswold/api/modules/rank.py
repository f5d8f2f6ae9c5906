"""`python -m cotswold.api.modules.rank`: a process that trains a module that it receives or makes.

Knows: the message of the launching process, exit codes. Does not know: the training.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from cotswold.api.modules.request import ModuleRequest
from cotswold.api.modules.train import train_module
from cotswold.api.objects import read_objects
from cotswold.api.run_job import RunObservers
from cotswold.api.signals import graceful_exit
from cotswold.errors import CotswoldError
from cotswold.run import Stop
from cotswold.ui.display import LoggingDisplay, Terminal
from cotswold.ui.terminal import write_message


def main(word: str) -> int:
    """Train; return the command's exit code: 0, 1, 2, or 128 + the number of the signal that stopped it."""
    given: dict[str, Any] = json.loads(word)
    try:
        objects = read_objects(Path(given["objects"]))
        request = ModuleRequest.of(
            objects["factory"] or objects["module"],
            None if objects["factory"] else objects["dataset"],
            directory=Path(given["directory"]),
            loss=objects["loss"],
            validation=objects["validation"],
            strategy=given["strategy"],
            settings={**given["settings"], "grid": given["grid"]},
            resume=given["resume"],
            components=objects["components"],
        )
        display = LoggingDisplay() if given["quiet"] else Terminal()
        return train_module(request, RunObservers(display, (), Stop(), graceful_exit)).code
    except CotswoldError as error:
        write_message(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # of the factory, data set or loss; the launching program reports it
        traceback.print_exc()
        write_message(f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
