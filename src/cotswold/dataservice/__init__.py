"""Data servers: processes that read, augment and serve training samples."""
