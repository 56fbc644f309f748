"""The command of `diagnose`."""
