"""The commands: one module each, which reads options, calls the package and prints."""
