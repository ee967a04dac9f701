"""One lowering for front ends with positional tensors: programs in, graphs of named dims out."""
