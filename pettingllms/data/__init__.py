"""Where tasks come from: seeded generators and files."""
