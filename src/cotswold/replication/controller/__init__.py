"""Controllers: which of them leads, who has copies of which bucket, who is elected."""
