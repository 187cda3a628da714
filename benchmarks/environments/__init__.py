"""Environments that serve as evidence and as examples: `signal`, and `crew` and `debugging`, whose agents call others."""
