"""torch's DataLoader: simulated (`model`), measured (`measured`), and advised (`advice`)."""
