"""What plays the roles: policies on one base model, their sampler, and their update's forward."""
