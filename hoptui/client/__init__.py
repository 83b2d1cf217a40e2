"""The client of the daemon and the connections, requests and commands of a viewer.

The dashboard and the command line use it. It draws nothing, affects runs only by commands, and needs no
terminal.
"""
