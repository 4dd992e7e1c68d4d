"""Emulated training: the GEMMs of nn.Linear on quantised operands, on any device."""
