"""ONNX files that somebody else exported: what follows the size, and where positions are.

Nothing is decided by names. A graph is walked once with a handful of *probe* sizes at the same
time (:mod:`.probes`, :mod:`.walk`): shapes follow the operators, numbers that were baked in for one
size are recognised where they stop fitting (:mod:`.sizes`), and a constant that stops fitting the
stream of tokens is a table of positions (:mod:`.find_positions`).
"""
