"""The workshop: it starts, watches, names and ends the processes behind ranks, stages and part loaders."""
