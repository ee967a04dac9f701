"""The general tile program: any block graph as statements over tiles; what writes and runs it."""
