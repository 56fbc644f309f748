"""What DistributedDataParallel does to gradients, shown on real ranks."""
