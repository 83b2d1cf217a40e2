"""Image classification with a vision transformer: on images in device memory or in a folder.

`train.py` is the loop, read from top to bottom; started by `hoptui train vision`. It knows nothing of daemons
and screens.
"""
