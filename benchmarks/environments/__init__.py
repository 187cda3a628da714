"""Environments that serve as evidence and as examples: `signal`, and `debugging`, whose agent calls another one."""
