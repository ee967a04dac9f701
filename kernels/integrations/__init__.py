"""This library's ops inside of other packages: one module for each of them."""
