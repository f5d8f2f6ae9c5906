"""The command ``cotswold``: one file a command; words, progress, exit codes; no arithmetic."""
