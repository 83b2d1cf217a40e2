"""The sampler processes: started, read, replaced when a driver call hangs."""
