"""The command ``cotswold``: one file per command; arguments, progress, exit codes; no arithmetic."""
