"""What each panel says: pure functions from one `View` to lines of text, for the screens alone.

They never touch a widget, a clock or a socket, so that a test can read them and a screen can compare them.
"""
