"""A stack on the disk beside its computing and the disk's own rate."""
