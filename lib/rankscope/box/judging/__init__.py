"""A verdict on a machine: what is expected of it, what is wrong with it, and its peers beside it."""
