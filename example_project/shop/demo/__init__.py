"""The demo: a few orders and an import, what their jobs do, and whether that is as it should be."""
