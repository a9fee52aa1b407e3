"""A small project for tests that start real worker processes; the environment steers it."""
