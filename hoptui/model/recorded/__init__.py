"""A recording as a store at a position in time, and a player that moves the position."""
