"""What a data server knows of a store: views and a cache of shards."""
