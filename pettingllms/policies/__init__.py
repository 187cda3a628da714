"""Policies (LoRA adapters or full models), their prompts, and the forward pass of the update."""
