"""Seeing positions: similarity, bias and frequency pictures of models and ONNX files.

    from vitpe_deploy.plot import draw, positions

    seen = positions("vit_small_patch16_224", resolutions=[384])
    seen.panels[0].values                                    # [h, w, h, w] cosine similarities
    draw(seen, "similarity.svg")

``positions`` computes numbers and needs no matplotlib; ``draw`` makes a picture of them.
"""

from vitpe_deploy.plot.drawing import draw
from vitpe_deploy.plot.prepare import positions
from vitpe_deploy.plot.values import Kind, Panel, PositionPlot

__all__ = ["Kind", "Panel", "PositionPlot", "draw", "positions"]
