"""Explorers of anything: settings, what they show, and the panel with the controls."""
