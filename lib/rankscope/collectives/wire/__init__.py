"""The executor: one plan for each rank, carried out over a process group, and by its twin on a simulated cluster."""
