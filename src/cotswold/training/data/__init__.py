"""Training data: batches from stores, from data sets and loaders of a program, and from data servers."""
