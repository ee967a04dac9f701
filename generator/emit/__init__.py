"""From a tile program to text: CUDA and the dispatch table."""
