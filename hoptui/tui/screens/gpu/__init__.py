"""The GPU screen: every reading of one GPU with its meaning."""
