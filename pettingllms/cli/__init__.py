"""The commands: one module each, which reads options, calls the package and prints."""

import os

# Read when torch is imported. Threads that spin while they wait for each other make a step of SmolLM2 four times as slow
# where two other processes keep two cores busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
