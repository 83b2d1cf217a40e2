"""Messages between a run, the daemon and its viewers.

Contains the messages, their codec and its limits. It never opens a socket or runs a loop.
"""

VERSION = "0.1.0"
"""The version of hoptui, in one place."""
