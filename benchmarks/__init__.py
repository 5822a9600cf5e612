"""Scripts that print numbers; they are not in the wheel."""
