"""Rollouts: one loop and one record for training, evaluation and benchmarks."""
