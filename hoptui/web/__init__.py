"""The dashboard in a browser: textual-serve, a process a tab, behind an address that only its owner knows."""
