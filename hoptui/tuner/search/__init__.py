"""What to try next: the search space, its order, what is known of each parameter and of memory."""
