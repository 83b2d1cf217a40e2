"""One background process per user and node: collects rows, keeps history, relays commands, answers viewers.

The SDK and the viewers start it through `hoptui.node.processes` and talk to it over two sockets; nothing
imports it. It may die at any time: training goes on, and the next daemon picks up from the recordings.
"""
