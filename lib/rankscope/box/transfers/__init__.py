"""Copies between host and GPU: what a machine's link is stated and measured to carry."""
