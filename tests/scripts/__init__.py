"""The script of notebook 07 on DataParallel. Notebooks 07, 11 and a4 run the others, and compare what they print."""
