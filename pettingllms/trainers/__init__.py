"""AT-GRPO and what it needs: configuration, advantages, episodes, metrics."""
