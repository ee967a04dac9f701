"""The build-time superoptimizer: from a recipe to proved, planned and emitted kernels."""
