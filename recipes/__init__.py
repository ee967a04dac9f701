"""The catalog of recipes: one file each, mathematics, PyTorch reference and shapes (README.md)."""
