"""Places and identities on a node: socket paths, credentials, process namespaces, the daemon's presence."""
