"""Sampling: inference engines that draw completions from the policies' weights, and scripts."""
