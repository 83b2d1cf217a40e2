"""The run screen: throughput, learning, phases, hardware, knobs and events of one run."""
