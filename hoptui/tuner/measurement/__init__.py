"""How fast a run is, what a change did to it, and changes that nobody made."""
