"""Jobs: create, resume, extend and check a run, from a recipe or a module."""
