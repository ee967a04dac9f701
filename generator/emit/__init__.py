"""From a tile program to text: CUDA, Triton, and the dispatch table."""
