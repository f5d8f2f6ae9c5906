"""The tables and figures of four papers: how each is redone, ours beside what is stated."""
