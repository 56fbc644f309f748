"""Figures that belong to `train`: buckets, bucket caps, and memory per rank."""
