"""What may age or go without the core noticing: nothing outside of this folder imports it.

    games       TextArena's games and PettingZoo's classic ones as environments
    sharing     adapters and their card for others, as a folder or on the Hugging Face hub

The core names an entry of it as a path in a string, and only where a user asks for it. Each part has an extra
and a test target of its own (`make test-games`, `make test-elsewhere`).
"""
