"""`cotswold help`.

Knows: the arguments of the command. Does not know: any other command.
"""

from __future__ import annotations


def help_(*command: str) -> None:
    """Explain a command: its arguments, options and examples; by default list all commands.

    `cotswold help COMMAND` and `cotswold COMMAND --help` print the same text.

    For instance:

      cotswold help
      cotswold help train
      cotswold help cluster status

    Parameters
    ----------
    command
        The words of the command, such as: cluster status.
    """
    from cotswold.cli.main import build
    from cotswold.errors import UserError

    app = build(command[0] if command else None)
    known = app.parse_commands(command)[0]
    if unknown := command[len(known) :]:
        there = " ".join(("cotswold help", *known))
        raise UserError(f"there is no command {' '.join((*known, unknown[0]))!r}; {there} lists all")
    app.meta([*command, "--help"], exit_on_error=False, print_error=False)
