"""The replay's dialog."""
