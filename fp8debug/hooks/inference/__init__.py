"""A model on one fixed batch, in high precision and in emulated FP8: how far apart, and since which layer."""
