"""Workers around a parameter server, and processes that share tensors."""
