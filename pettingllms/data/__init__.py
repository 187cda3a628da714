"""Sources of tasks: seeded generators, files, and published data sets."""
