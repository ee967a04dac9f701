"""Find the recipes' programs in a PyTorch graph, and put this library's ops in their places.

In the order of the flow: `terms` (formulas with laws), `aten` (what PyTorch's operators mean),
`trace` (a graph's formulas), `patterns` (those of the recipes' references), `match`, `choose`
(which matches are replaced), `packing` (several weights as one), `strides` (whether a part of their
product may be a slice of it), `rewrite`, `report`, `backend`.
"""
