"""Writing small quantised checkpoints, in any dialect: test material, and what right looks like."""
