"""Finding muGraphs: enumeration with pruning, proof, the numeric gate, choice."""
