"""Search for the session options and environment variables with which a model needs less memory."""
