"""What travels between a run, the daemon and its viewers, and where their sockets live.

Every other package imports this one and it imports none of them. It holds messages, their codec and limits,
addresses and the checks on them; it never opens a socket or runs a loop.
"""
