"""Ways to other programs, each one file, each optional."""
