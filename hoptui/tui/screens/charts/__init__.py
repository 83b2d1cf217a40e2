"""The charts screen: any series on one x axis, and another run beside it."""
