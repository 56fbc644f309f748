"""The workshop: it starts, watches, names and ends the processes behind ranks and stages."""
