"""Value types that all processes share: knobs, rows as columns, devices, diagnoses, trials. No I/O."""
