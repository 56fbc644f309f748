"""A training step under DistributedDataParallel: gradient buckets, overlap with backward, and which cap to choose."""
