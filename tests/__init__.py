"""The tests: `tests.toy_env` and the like are shared between them."""
