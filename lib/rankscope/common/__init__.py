"""What every room stands on: checks of input, frozen values, files, units."""
