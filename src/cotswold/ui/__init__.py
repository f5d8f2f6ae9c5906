"""Output for terminals and notebooks: progress, tables, sentences about processes."""
