"""What panels show: pure functions from one `View` to lines of text.

They use no widget, clock or socket. So tests can read the lines and screens can compare them.
"""
