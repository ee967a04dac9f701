"""Records: what is committed for every kernel, and the folder of kernels."""
