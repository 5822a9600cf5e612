"""Reference networks in plain PyTorch, and their shapes as plain data."""
