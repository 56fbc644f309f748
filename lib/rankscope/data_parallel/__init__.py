"""A training step of DataParallel: which messages it sends, and when."""
