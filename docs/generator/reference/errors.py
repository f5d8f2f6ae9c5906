"""The page of errors and exit codes, from the classes of `cotswold.errors`.

Knows: the meaning of exit codes that are no error's. Does not know: the errors.
"""

from __future__ import annotations

import inspect

from docs.generator.reference.text import prose, table

from cotswold import errors


def error_page() -> str:
    """Return the page."""
    codes = [
        ["0", "success; a cluster or a worker ended by a signal"],
        [str(errors.CotswoldError.exit_code), "the machine or its files failed"],
        [str(errors.UserError.exit_code), "a mistake of the user: a wrong argument, recipe or file"],
        [
            str(errors.ANOTHER_RANK_EXIT),
            "a rank of a grid, or a replica under a launcher, ended because another rank died, failed "
            "or hung",
        ],
        ["128 + N", "signal N, such as 130 after Ctrl-C and 143 after SIGTERM"],
    ]
    classes = [
        found
        for found in vars(errors).values()
        if inspect.isclass(found) and issubclass(found, errors.CotswoldError)
    ]
    rows = [
        [
            f"[`{found.__name__}`](api/errors.md#cotswold.errors.{found.__name__})",
            str(found.exit_code),
            prose((inspect.getdoc(found) or "").partition("\n")[0]),
        ]
        for found in classes
    ]
    return (
        "# Errors and exit codes\n\n"
        "A command prints an error as one sentence that names the cause and the remedy. With `--debug` "
        "it adds\n"
        "the traceback. In Python the same error is an exception of `cotswold.errors`.\n\n"
        "## Exit codes\n\n"
        + table(["exit code", "meaning"], codes)
        + "\nThe help of a command states what a code means for it ([command line](commands/index.md)).\n"
        "\n## Errors\n\n" + table(["class", "exit code", "meaning"], rows)
    )
