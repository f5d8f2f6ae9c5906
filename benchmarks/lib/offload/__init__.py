"""A stack on disk, compared with its computation and the disk's own rate."""
