"""Plans: what a run would do on these machines, before it starts."""
