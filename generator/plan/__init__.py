"""From a muGraph to a tile program: thread graphs, places of values, variants."""
