"""Tutorial pages, read and run as a reader would."""
