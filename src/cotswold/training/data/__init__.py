"""Training data: batches from stores, data sets and loaders of a program, data servers."""
