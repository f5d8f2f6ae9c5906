"""Rules for torch's functions on distributed arrays, and on maps whose results are such arrays."""
