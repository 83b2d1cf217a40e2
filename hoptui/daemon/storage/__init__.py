"""Recordings and tuner results on disk. One thread owns them."""
