"""What changes do to a run's speed, and what to change next: pure logic, rows in, figures and advice out.

The daemon calls it with values and a clock; it never reads a socket or a file and never applies anything
itself.
"""
