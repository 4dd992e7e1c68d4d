"""Renderers: a record goes in, text comes out. None of them reads a run or parses an option."""
