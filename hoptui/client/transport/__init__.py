"""Ways to a daemon: the local socket, or a tunnel through ssh."""
