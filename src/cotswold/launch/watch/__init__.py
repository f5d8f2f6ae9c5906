"""The watch over deaths: beats, what follows from them, and the threads around it."""
