"""Hands on what a run has trained: its adapters, and a card made from what was measured.

    DIR, or a repository of the hub
        README.md                     the card
        curves.png                    success and reward, step by step
        POLICY/adapter_config.json    an adapter as PEFT saves it, for each policy
               adapter_model.safetensors
        team.json                     environment, base, policies, and each role's prompt: inert data

`pettingllms-eval` and `pettingllms-serve` take such a folder or repository as it is (`pettingllms.runs.team`).
What is about this machine and no other (paths, addresses, keys) is left out.
"""
