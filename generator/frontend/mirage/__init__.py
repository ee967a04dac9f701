"""Mirage's face on our graphs: its builder API, hand-written block graphs, checkpoints."""
