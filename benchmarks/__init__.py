"""Experiments and measurements: one script each; results with their settings in `results/`."""
