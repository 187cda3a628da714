"""PettingZoo-style multi-agent environments for language models, and an AT-GRPO trainer.

`pettingllms.envs` needs no deep-learning library; `pettingllms.trainers` needs the `train` extra.
"""

__version__ = "0.1.0"
