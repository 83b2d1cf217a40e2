"""What every viewer is made of: the client of the daemon, the store it fills, and the words for what is in
it.

The dashboard and the command line call it; it draws nothing, never touches a run except by commands over the
wire, and works without a terminal.
"""
