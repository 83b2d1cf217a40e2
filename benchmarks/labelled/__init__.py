"""Training loops with a known limit, as people write them, and the verdict that is right for each."""
