"""The checks of `hoptui doctor`. Each probe returns a `Check`, changes nothing and has a time limit.

Only `hoptui.cli.commands.doctor` uses them. Probes take what they read (`/proc`, `/dev`, an environment)
as arguments.
"""
