"""Delivers alerts to webhooks and commands: `python -m hoptui.alerts`, which the daemon starts."""
