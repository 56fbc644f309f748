"""The commands of the command line that measure, read and compare machines."""
