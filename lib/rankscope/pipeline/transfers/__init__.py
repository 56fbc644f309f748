"""Copies to the GPU beside computation: simulated (`model`) and executed (`run`)."""
