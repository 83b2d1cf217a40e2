"""The version of hoptui, in one place."""

VERSION = "0.1.0"
