"""Part files: a model of trainers that read them, datasets that do, and their explorer."""
