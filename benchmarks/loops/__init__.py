"""Training loops as people write them, with knobs declared in the obvious way, for the tuner.

Rules of the tuner may be made with `gpt`, `cnn` and `unet` (development). `actor_critic`, `recurrent` and
`autoencoder` are the test lot: no rule and no threshold is set with them.
"""
