"""What makes pages of the collection: its notebooks, explorers and docstrings, and a check of what comes out."""
