"""What `hoptui doctor` looks at: each probe answers with a `Check`, touches nothing, and is given little time.

Only `hoptui.cli.commands.doctor` calls it. Probes take the places they read (`/proc`, `/dev`, an environment) as arguments.
"""
