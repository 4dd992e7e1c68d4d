"""A checkpoint against a recorded run: the weights that training had, and what its GEMMs read of them."""
