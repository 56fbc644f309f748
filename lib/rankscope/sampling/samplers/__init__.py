"""Samplers of torch and libtorch, and our own: the order of samples, and which rank reads which."""
