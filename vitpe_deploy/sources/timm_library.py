"""Networks of timm made by timm itself: at a size, for any size, with weights resampled by timm.

Everything here goes through ``timm.create_model``. A network is made on the ``meta`` device to ask
what it can do (no memory, well under a second), and on the CPU with weights to be run.
"""

from __future__ import annotations

import ast
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitpe_deploy.errors import MissingExtraError, SourceError, UsageError
from vitpe_deploy.request import Resolution, closest

_SIZE_OPTION = "img_size"
_DYNAMIC_OPTION = "dynamic_img_size"
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument(?:\(s\):)? \[?'(\w+)'")


class CreationError(Exception):
    """timm would not make the network, or would not put the weights into it; in its own words."""


@dataclass(frozen=True)
class Library:
    """One timm name with the user's options.

    Attributes:
        name: a name of timm's registry, with or without a pretrained tag.
        options: further arguments of the constructor.
    """

    name: str
    options: Mapping[str, Any]

    @classmethod
    def open(cls, name: str, kwargs: Mapping[str, Any]) -> Library:
        """Check the name.

        Raises:
            MissingExtraError: timm is not installed.
            UsageError: timm has no such name, with the closest ones.
        """
        try:
            import timm
        except ImportError as problem:
            raise MissingExtraError(problem.name or "timm", "timm") from problem
        architecture = name.partition(".")[0]
        if not timm.is_model(architecture):
            raise UsageError(
                f"MODEL 'timm:{name}': timm {timm.__version__} has no model {architecture!r}",
                hint=closest(architecture, timm.list_models()).strip()
                or "python -c 'import timm; print(timm.list_models())' lists them.",
            )
        known = timm.list_pretrained(f"{architecture}.*") if "." in name else [name]
        if name not in known:
            raise UsageError(
                f"MODEL 'timm:{name}': timm {timm.__version__} has no such pretrained tag",
                hint=f"{closest(name, known)}Choose from: {', '.join(known) or architecture}.",
            )
        return cls(name, {k: _value(k, v) for k, v in kwargs.items()})

    def create(
        self,
        *,
        device: str = "cpu",
        size: Resolution | None = None,
        symbolic: bool = False,
        state: Mapping[str, Tensor] | None = None,
        **more: Any,
    ) -> nn.Module:
        """The network as timm makes it, in eval mode and without gradients.

        Args:
            device: "meta" for a network without data.
            size: asked for as ``img_size``; timm's own default for None.
            symbolic: asked for as ``dynamic_img_size=True``.
            state: weights of the training size, put in by timm's own loader.
            more: further arguments of the constructor.

        Raises:
            CreationError: with timm's reason.
        """
        import timm

        options: dict[str, Any] = {**self.options, **more}
        if size is not None:
            options[_SIZE_OPTION] = (size.height, size.width)
        if symbolic:
            options[_DYNAMIC_OPTION] = True
        if state is not None:
            options |= {"pretrained": True, "pretrained_cfg_overlay": self._overlay(state)}
        try:
            with _quietly(), torch.device(device):
                module: nn.Module = timm.create_model(self.name, **options)
        except Exception as problem:  # assertions, type errors and torch's own errors alike
            raise CreationError(_reason(problem)) from problem
        if state is not None:
            # The config that stays in the module must not keep a second copy of the weights.
            kept = {k: v for k, v in module.pretrained_cfg.items() if k != "state_dict"}  # type: ignore[union-attr, operator]
            module.pretrained_cfg = module.default_cfg = kept  # type: ignore[assignment]
        return module.eval().requires_grad_(False)

    def probe(self) -> nn.Module:
        """The network without data, to be asked what it is.

        Raises:
            UsageError: an option that the class does not take.
            SourceError: timm cannot make it.
        """
        try:
            return self.create(device="meta")
        except CreationError as problem:
            unknown = _UNKNOWN_OPTION.search(str(problem))
            if unknown is not None and unknown[1] in self.options:
                raise UsageError(
                    f"--model-kwarg {unknown[1]} is not an option of timm's {self.name}",
                    hint="Options are the arguments of the class in timm, e.g. num_classes=10.",
                ) from problem
            raise SourceError(f"timm cannot make {self.name}: {problem}") from problem

    def takes(self, option: str, value: Any) -> bool:
        """Whether the class has an option at all."""
        try:
            self.create(device="meta", **{option: value})
        except CreationError as problem:
            unknown = _UNKNOWN_OPTION.search(str(problem))
            return unknown is None or unknown[1] != option
        return True

    def _overlay(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Make timm load the weights as they are: no class is dropped because counts differ."""
        overlay: dict[str, Any] = {"state_dict": dict(state), "custom_load": False}
        probe: Any = self.probe()
        overlay["num_classes"] = probe.num_classes
        stated = getattr(probe, "in_chans", None)
        channels = stated if isinstance(stated, int) else int(self.options.get("in_chans", 3))
        overlay["input_size"] = (channels, *probe.pretrained_cfg["input_size"][1:])
        head = probe.pretrained_cfg.get("classifier")
        rows = state.get(f"{head}.weight") if isinstance(head, str) else None
        if rows is None or rows.shape[0] == probe.num_classes:
            overlay["label_offset"] = 0
        return overlay


def first_line(problem: BaseException | str) -> str:
    """The line of an error that says something."""
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    if not lines:
        return "an assertion failed" if isinstance(problem, AssertionError) else "no reason given"
    return lines[0][:300]


def _reason(problem: Exception) -> str:
    """timm's reason in one line; for weights that do not fit, what does not."""
    lines = [line.strip() for line in str(problem).strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Error(s) in loading state_dict"):
        return "; ".join(lines[1:9])[:600]
    if isinstance(problem, AssertionError) and not lines:
        trace = problem.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = "" if trace is None else f" in {trace.tb_frame.f_code.co_qualname}"
        return f"an assertion fails{where}"
    return first_line(problem)


@contextmanager
def _quietly() -> Iterator[None]:
    """timm says what it resamples in its log; what matters of it is in our report."""
    logger = logging.getLogger("timm")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _value(name: str, given: Any) -> Any:
    """What shell text means to a constructor: ``12``, ``0.1``, ``true``, ``(2,2)``, ``160x288``."""
    if not isinstance(given, str):
        return given
    size = re.fullmatch(r"(\d+)[xX](\d+)", given)
    if name == _SIZE_OPTION and size is not None:
        return int(size[1]), int(size[2])
    if given.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[given.lower()]
    try:
        return ast.literal_eval(given)
    except (ValueError, SyntaxError):
        return given
