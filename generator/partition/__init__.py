"""Cutting a PyTorch function into kernels and operators that PyTorch runs itself."""
