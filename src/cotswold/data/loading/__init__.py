"""Order, prefetch, shuffle and batches of samples."""
