"""The `hoptui` command. Its commands read and control runs through `hoptui.client`; some open the dashboard.

A module is imported when its command runs, so help and scripts stay fast. An expected failure is one
sentence on stderr and an exit code.
"""
