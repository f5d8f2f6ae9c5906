"""Rules for torch's functions on distributed maps: one rule per function."""
