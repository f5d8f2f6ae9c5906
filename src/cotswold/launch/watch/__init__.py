"""Detect deaths of ranks: beats, the decisions that follow from them, and the threads around them."""
