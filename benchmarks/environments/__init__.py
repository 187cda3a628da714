"""Environments that serve as evidence and as examples: `signal`, `duet`, and `debugging`, whose agent calls another one."""
