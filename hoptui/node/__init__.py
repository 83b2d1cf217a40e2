"""Places and processes of a node: socket paths, credentials of peers, PID namespaces, the daemon."""
