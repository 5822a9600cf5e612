"""Looking at a model or a file without running it: what ``vitpe-inspect`` says.

Models are looked at without weights (:mod:`.models`), files without the ``onnx`` package
(:mod:`.files`, :mod:`.onnx_skeleton`). Nothing of a file is executed.
"""
