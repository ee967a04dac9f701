"""Mirage's interface on our graphs: its builder API, hand-written block graphs, checkpoints."""
