"""What the runtime will do with a model, predicted from its graph and the runtime's version."""
