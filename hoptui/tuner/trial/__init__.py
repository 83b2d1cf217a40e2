"""One trial: its commands, its decision, its rollback, its cost, and the knobs that users hold."""
