"""One background process per user and node: collects rows, stores history, relays commands, answers viewers.

The SDK and the viewers start it through `hoptui.node.processes` and use two sockets; nothing imports it. It
may die at any time: training continues, and the next daemon restores its state from the recordings.
"""
