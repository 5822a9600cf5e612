"""An ONNX file of anybody's as a source: its graph is changed, nothing is traced.

The referee is the original file in ONNX Runtime wherever that computes: at its own size always, at
others when its graph follows its input. Where numbers of one size are baked in, there is no such
answer; then it is the original graph, unoptimised, with its tables resampled by PyTorch's own
interpolation. That proves the resampling, the passes, the opset conversion and the engines, but
shares the reading of the baked numbers; :attr:`LoadedGraph.reference` says which of the two it was.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx_ir as ir
from torch import Tensor, nn

from vitpe_deploy.encodings.resample import ResampleRule, interpolate_grid
from vitpe_deploy.errors import UnsupportedError
from vitpe_deploy.files import sha256_of
from vitpe_deploy.inputs import ImageInput
from vitpe_deploy.parity import Array, Outputs
from vitpe_deploy.request import ModelRequest, Resolution
from vitpe_deploy.retarget.analysis import Analysis, analyse
from vitpe_deploy.retarget.read import PictureGraph, read_graph
from vitpe_deploy.retarget.static import at_size, copied, describe
from vitpe_deploy.runtimes.onnxruntime import OnnxRuntime
from vitpe_deploy.sources.base import LoadedModel, ModelFacts, PositionFit, SizeRule, Source
from vitpe_deploy.sources.file_flags import refuse_model_flags

ORIGINAL = "original file"
BY_RULE = "original graph, tables resampled by PyTorch"


class LoadedGraph(LoadedModel):
    """A file that was read. It has no module."""

    def __init__(
        self, facts: ModelFacts, graph: PictureGraph, analysis: Analysis | None, rule: ResampleRule
    ) -> None:
        super().__init__(facts, nn.Module(), graph.path.name)
        self.graph = graph
        self.analysis = analysis
        self.rule = rule

    @property
    def num_parameters(self) -> int:
        """Numbers in initializers."""
        return sum(
            v.const_value.size
            for v in self.graph.model.graph.initializers.values()
            if v.const_value is not None
        )

    @property
    def computes_any_size(self) -> bool:
        """Whether the original computes at other sizes as it is."""
        return self.analysis is not None and not self.analysis.found.size_is_baked

    @property
    def reference(self) -> str:
        """What files are compared with away from the size of the original."""
        return ORIGINAL if self.computes_any_size or self.analysis is None else BY_RULE

    def referee(self, *, threads: int | None = None, symbolic: bool = False) -> GraphReferee:
        """The original file, or its graph with tables by the rule."""
        del symbolic
        return GraphReferee(self, threads)

    def position_fits(self, size: Resolution | None) -> tuple[PositionFit, ...]:
        """One line per set of positions."""
        grid = None if size is None else self.facts.grid(size)
        fits = []
        for position in () if self.analysis is None else self.analysis.positions:
            own = position.kind == "resized"
            rule = "the file's own Resize" if own else str(self.rule)
            fits.append(PositionFit(describe(position), position.grid, grid, rule))
        return tuple(fits) or (PositionFit("no constant follows the size", None, None, None),)

    def _hash_weights(self) -> str:
        return sha256_of(self.graph.path)

    def block_paths(self) -> tuple[str, ...]:
        """None: a file has no modules."""
        return ()

    def fresh(self, size: Resolution | None = None, *, symbolic: bool = False) -> nn.Module:
        """Refused.

        Raises:
            UnsupportedError: always.
        """
        del size, symbolic
        self._refuse()

    def call(self, module: nn.Module, inputs: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Refused.

        Raises:
            UnsupportedError: always.
        """
        del module, inputs, names
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"{self.graph.path.name} is an ONNX file and holds no PyTorch module",
            hint="Name the source model instead.",
        )


class GraphReferee:
    """Reference outputs in ONNX Runtime. See :class:`vitpe_deploy.parity.Reference`."""

    def __init__(self, loaded: LoadedGraph, threads: int | None) -> None:
        self._loaded = loaded
        self._threads = threads

    def outputs(
        self, size: Resolution, inputs: Sequence[Array], names: Sequence[str]
    ) -> list[Outputs]:
        """Run the original, or its graph at this size."""
        loaded, graph = self._loaded, self._loaded.graph
        if size == graph.declared or loaded.analysis is None:
            return self._run(graph.path, inputs, names)
        if loaded.computes_any_size:
            model = _freed(graph)
        else:
            batch = graph.batch or int(inputs[0].shape[0])
            model = at_size(graph, size, batch, loaded.rule, resample=interpolate_grid)
        with tempfile.TemporaryDirectory(prefix="vitpe-referee-") as folder:
            path = Path(folder) / "reference.onnx"
            ir.save(model, path, external_data="reference.data")
            return self._run(path, inputs, names)

    def _run(self, path: Path, inputs: Sequence[Array], names: Sequence[str]) -> list[Outputs]:
        with OnnxRuntime(path, threads=self._threads) as runtime:
            source = runtime.inputs[0].name
            return [self._in_pieces(runtime, source, x, names) for x in inputs]

    def _in_pieces(
        self, runtime: OnnxRuntime, source: str, whole: Array, names: Sequence[str]
    ) -> Outputs:
        """A batch in pieces of the original's own batch, so that no other is ever needed."""
        own = self._loaded.graph.batch or len(whole)
        pieces = []
        for start in range(0, len(whole), own):
            piece = whole[start : start + own]
            filled = np.resize(piece, (own, *whole.shape[1:]))
            result = runtime.run({source: filled})
            pieces.append({name: result[name][: len(piece)] for name in names})
        if len(pieces) == 1 and own == len(whole):
            return {name: pieces[0][name] for name in names}
        return {name: np.concatenate([p[name] for p in pieces]) for name in names}


def _freed(graph: PictureGraph) -> ir.Model:
    """The original with a symbolic size, and no shapes that say otherwise."""
    free = copied(graph)
    batch = graph.batch or "batch"
    free.source.shape = ir.Shape([batch, graph.channels, "height", "width"])
    for node in free.model.graph:
        for value in node.outputs:
            value.shape = None
    return free.model


class OnnxGraphSource(Source):
    """``path/to/model.onnx``."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        refuse_model_flags(request)
        self._read: tuple[PictureGraph, Analysis | None, str] | None = None

    def facts(self) -> ModelFacts:
        """What the graph says of itself."""
        graph, analysis, fixed = self._graph()
        positions = () if analysis is None else analysis.positions
        native = graph.declared
        if native is None and positions:
            rows, columns = positions[0].grid
            native = Resolution(rows * graph.patch[0], columns * graph.patch[1])
        baked = [p for p in positions if p.kind == "bias"]
        no_dynamic = fixed
        if baked:
            no_dynamic = f"its attention bias {baked[0].name} is baked for one size"
            if not self.request.resample:
                fixed = (
                    f"attention bias {baked[0].name}: libraries resample such tables differently "
                    "(timm along BEiT's uneven grid, transformers bilinearly) and no file says "
                    "how; name the rule with --interpolation"
                )
        names = tuple(str(v.name) for v in graph.model.graph.outputs)
        rule = SizeRule.for_patches(
            graph.patch, "refuses", fixed=native if fixed else None, fixed_reason=fixed
        )
        kinds = list(dict.fromkeys(describe(p) for p in positions))
        own = any(p.kind == "resized" for p in positions)
        return ModelFacts(
            name=graph.path.stem,
            spec=self.request.model,
            native=native,
            size_rule=rule,
            grid_divisor=graph.patch,
            encoding=" and ".join(kinds) or None,
            encoding_params={
                "tables": [str(p) for p in positions],
            },
            prefix_tokens=0 if analysis is None else analysis.prefix,
            outputs=names,
            default_outputs=names,
            depth=0,
            input=ImageInput(graph.channels),
            resample_rule="the file's own Resize" if own else str(self._rule()),
            no_dynamic=no_dynamic,
        )

    def load(self) -> LoadedGraph:
        """The graph, its weights still in the file."""
        graph, analysis, _ = self._graph()
        return LoadedGraph(self.facts(), graph, analysis, self._rule())

    def _rule(self) -> ResampleRule:
        return ResampleRule().overridden(self.request.resample)

    def _graph(self) -> tuple[PictureGraph, Analysis | None, str]:
        """The file, what was found in it, and why its size is fixed when it is."""
        if self._read is None:
            graph = read_graph(Path(self.request.model))
            try:
                self._read = (graph, analyse(graph), "")
            except UnsupportedError as problem:
                if graph.declared is None:
                    raise
                self._read = (graph, None, problem.message)
        return self._read


SOURCE = OnnxGraphSource
