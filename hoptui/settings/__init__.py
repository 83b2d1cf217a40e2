"""Settings from options, environment and config.toml, and choices that the dashboard remembers."""
