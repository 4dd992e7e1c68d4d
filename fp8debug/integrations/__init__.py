"""Adapters for trainers: one module a trainer, imported only by who uses it."""
