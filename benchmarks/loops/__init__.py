"""Training loops as people write them, with knobs declared in the obvious way, for the tuner.

`catalogue` has the two lots. Rules of the tuner may be made with `gpt`, `cnn` and `unet` (development). All
other loops are the test lot: no rule and no threshold is set with them.
"""
