"""Figures of profiles, of machines next to each other, and of topologies."""
