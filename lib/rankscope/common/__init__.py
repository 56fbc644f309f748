"""Used by all packages: checks of arguments, frozen values, files, units, lazy imports."""
