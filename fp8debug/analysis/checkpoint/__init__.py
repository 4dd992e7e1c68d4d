"""Are the weights and scales of a checkpoint read the way they were written."""
