"""Adapters for training frameworks. Each module imports its own framework and the public API of hoptui.

Nothing here is imported by the rest of hoptui; hoptui's own trainer uses `torch_trace`.
`hoptui.integrations.versions` says which versions of a framework an adapter supports.
"""
