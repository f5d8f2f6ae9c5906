"""What torch's functions do to maps that are cut over ranks: one rule a function."""
