"""Networks and descriptions of runs for other programs: export files and model cards."""
