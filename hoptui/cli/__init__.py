"""The `hoptui` command: each command reads or steers runs through `hoptui.client`, and only some of them open the dashboard.

Modules are imported when their command runs, so that help and scripts stay fast; every expected failure is one sentence on
stderr and an exit code.
"""
