"""Used by all packages: checks of arguments, files, units, words, and imports of what not everybody has."""
