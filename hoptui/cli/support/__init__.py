"""What several commands share: options, output, errors, outcomes, recordings, snapshots of the node."""
