"""How tensors are reached: one module a way of reaching them."""
