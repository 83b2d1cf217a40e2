"""A recording seen as a store at a moment, and a player that moves the moment."""
