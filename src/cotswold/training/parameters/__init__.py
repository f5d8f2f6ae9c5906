"""Where parameters live: in memory, on disk, over ranks."""
