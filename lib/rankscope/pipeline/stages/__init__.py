"""Stages and the queues between them: simulated (`model`), run (`run`), and explored (`explorer`)."""
