"""Reading a model without loading its weights, and what its graph says about them."""
