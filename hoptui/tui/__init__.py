"""The dashboard: Textual screens on the viewer's store.

Only the command line opens it (`hoptui.tui.app.run`). It reads the store, draws, and sends commands through
the viewer's client. It opens no socket and does not interpret values. Closing it affects no run.
"""
