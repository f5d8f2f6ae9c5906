"""`cotswold completion`.

Knows: the arguments of the command. Does not know: the syntax of a shell.
"""

from __future__ import annotations

from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands and options of cotswold in a shell.

    Write the script to a file that the shell reads at its start. For bash, that needs the
    package bash-completion. For zsh, the folder of the file must be in fpath before
    compinit is called: fpath=(~/.zfunc $fpath). Repeat the command after an update of
    Cotswold.

    For instance:

      cotswold completion bash > ~/.local/share/bash-completion/completions/cotswold
      cotswold completion zsh > ~/.zfunc/_cotswold
      cotswold completion fish > ~/.config/fish/completions/cotswold.fish
      eval "$(cotswold completion bash)"                  in this shell only

    Parameters
    ----------
    shell
        The shell: bash, zsh or fish.
    """
    from cotswold.cli.main import build

    print(build().generate_completion(prog_name="cotswold", shell=shell), end="")
