"""The document of ``vitpe-inspect --json``: frozen values, and nothing else."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import ConfigDict, Field

from vitpe_deploy.results import PassRecord, Value, Verdict

Certainty: TypeAlias = Literal["certain", "likely", "unknown"]


class Evidence(Value):
    """One reason to believe in an encoding.

    Attributes:
        kind: what was looked at. ``config``: the model declares it. ``interpolation``: the network
            was watched resampling it. ``parameter``: a tensor by name and shape. ``initializer``:
            a constant of the graph that meets the tokens. ``metadata``: the file says so.
        where: path of the parameter, name of the initializer, or what was called.
        shape: its dimensions; of an interpolation, rows and columns before it.
        count: how many like it there are, one per layer as a rule.
        says: what it tells.
    """

    kind: Literal["config", "interpolation", "parameter", "initializer", "metadata"]
    where: str
    shape: tuple[int, ...] | None = None
    count: int = 1
    says: str = ""


class Positions(Value):
    """The encoding that was found.

    Attributes:
        certainty: ``certain`` when it is declared or was watched at work, ``likely`` when names
            and shapes suggest it, ``unknown`` when nothing was found.
        grid: rows and columns of patch tokens at the native size.
    """

    encoding: str | None
    certainty: Certainty
    evidence: tuple[Evidence, ...]
    grid: tuple[int, int] | None
    prefix_tokens: int | None


class Sizes(Value):
    """Which sizes it can take, in pixels, height first.

    Attributes:
        divisor: sizes must be multiples of it.
        reason: what the divisor comes from.
        remainder: what happens to other sizes: refuses, floors (border pixels are dropped), pads.
        fixed: the only size, for what cannot change it; ``fixed_reason`` says why.
        square: why height and width must be equal; empty when they need not.
        dynamic: whether one file can take several sizes; ``not_dynamic`` says why not.
        dynamic_divisor: multiples that a file with symbolic height and width takes.
        longest: tokens of the longest text, for text towers.
        buckets: the sizes of all files that share their weights.
    """

    native: tuple[int, int] | None
    divisor: tuple[int, int] | None = None
    reason: str = ""
    remainder: Literal["refuses", "floors", "pads"] | None = None
    least: tuple[int, int] | None = None
    fixed: tuple[int, int] | None = None
    fixed_reason: str = ""
    square: str = ""
    dynamic: bool
    not_dynamic: str = ""
    dynamic_divisor: tuple[int, int] | None = None
    longest: int | None = None
    buckets: tuple[tuple[int, int], ...] = ()


class Fusing(Value):
    """What attention looks like, and what passes did with it.

    Attributes:
        attention: attentions that are, or would become, one node each.
        by_hand: attentions spelled as matrix product, softmax, matrix product.
        traced: whether ``--trace`` was asked for and ``passes`` are known.
        passes: what each pass changed, and what it left alone and why.
    """

    attention: int
    by_hand: int
    traced: bool = False
    passes: tuple[PassRecord, ...] = ()


class InOpenVino(Value):
    """Whether OpenVINO computes something else than PyTorch.

    Attributes:
        wrong: for a file: as it stands. For a model: as a plain ``torch.onnx.export`` of it, with
            a symbolic size, would stand; exports of ours are right.
        reasons: each with the node or call and what is known of it.
    """

    wrong: bool
    reasons: tuple[str, ...] = ()


class Consumer(Value):
    """What is known of one reader of the file. ``runs`` is null where nothing is claimed."""

    name: str
    runs: bool | None
    reasons: tuple[str, ...] = ()


class Dimension(Value):
    """One symbolic dimension of an input, with its bounds where the file says any."""

    input: str
    axis: int
    name: str | None
    low: int | None = None
    high: int | None = None
    step: int | None = None
    enforced_by: str = ""


class TensorFacts(Value):
    """Name, shape and type of an input or output; symbolic dimensions are text."""

    name: str
    shape: tuple[int | str, ...] | None
    dtype: str


class FileFacts(Value):
    """What a file holds and who can read it."""

    format: Literal["onnx", "openvino"]
    files: tuple[str, ...]
    size_bytes: int
    producer: str
    opsets: dict[str, int]
    operators: dict[str, int]
    weight_dtypes: tuple[str, ...]
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    symbolic: tuple[Dimension, ...]
    consumers: tuple[Consumer, ...]
    metadata: dict[str, str]
    manifest: Verdict | Literal["none", "damaged", "of another file"]
    manifest_note: str = ""
    bundle_cases: int | None = None


class InspectReport(Value):
    """The document of ``vitpe-inspect --json``."""

    schema_: Literal["vitpe.inspect/1"] = Field(default="vitpe.inspect/1", alias="schema")
    subject: str
    kind: Literal["model", "onnx", "openvino", "bundle"]
    name: str
    positions: Positions
    sizes: Sizes
    blocks: int | None
    parameters: int
    outputs: tuple[str, ...]
    fusing: Fusing
    openvino: InOpenVino
    file: FileFacts | None = None

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, protected_namespaces=()
    )
