"""The dashboard: Textual screens on the viewer's store.

Only the command line opens it (`hoptui.tui.dashboard.run`). It reads the store, draws, and sends commands through the
viewer's client; it never opens a socket, never decides what a value means, and leaving it never touches a run.
"""
