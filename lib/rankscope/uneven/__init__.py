"""Ranks that run out of batches at different times."""
