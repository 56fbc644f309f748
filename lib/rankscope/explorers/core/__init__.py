"""Explorers of the core: samplers, pipelines, part files and collectives."""
