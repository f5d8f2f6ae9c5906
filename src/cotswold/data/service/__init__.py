"""Views of a store and a cache of its shards, for data servers."""
