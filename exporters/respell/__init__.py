"""A file of ours in another target's spelling, without the model that it came from."""
