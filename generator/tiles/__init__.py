"""The general tile program: any block graph as statements over tiles, and what writes and runs it."""
