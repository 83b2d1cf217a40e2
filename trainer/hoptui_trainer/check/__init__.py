"""`hoptui train check`: measure what a training run will need of this machine."""
