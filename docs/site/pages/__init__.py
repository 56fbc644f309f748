"""What makes pages of the collection: its notebooks, its commands, its docstrings, and a check of what comes out."""
