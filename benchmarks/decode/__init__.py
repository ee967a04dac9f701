"""Whole decode steps: models in random weights, our steps and their peers."""
