"""One tower of a two-tower network of the transformers library, as a module of its own."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitpe_deploy.sources.inspection import without_data

_POOLED = "pooler_output"
_STATES = "last_hidden_state"


class Tower(nn.Module):
    """A composed network of which only what one tower reads is left.

    Attributes:
        method: the library's method that runs the tower.
        part: where the library keeps its encoder.
        settings: where the config has its own.
    """

    method: ClassVar[str]
    part: ClassVar[str]
    settings: ClassVar[str]

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        whole: Any = network.config
        self.config = getattr(whole, self.settings)
        self._keep_what_is_called()

    def example(self, device: str) -> Tensor:
        """An input to try the tower with."""
        raise NotImplementedError

    def takes(self, option: str) -> bool:
        """Whether the library's method has an option."""
        return option in inspect.signature(getattr(self.network, self.method)).parameters

    def run(self, inputs: Tensor, **options: Any) -> dict[str, Tensor]:
        """``last_hidden_state``, ``pooler_output`` before and ``embedding`` after projection."""
        found: dict[str, Tensor] = {}

        def before_projection(_module: nn.Module, _inputs: object, output: Any) -> None:
            # Read at once: the library writes the projected values over it.
            for name in (_STATES, _POOLED):
                if isinstance(getattr(output, name, None), Tensor):
                    found[name] = getattr(output, name)

        encoder: Any = getattr(self.network, self.part, None)
        method: Any = getattr(self.network, self.method)
        with contextlib.ExitStack() as stack:
            if isinstance(encoder, nn.Module):
                handle = encoder.register_forward_hook(before_projection)
                stack.callback(handle.remove)
            result = method(inputs, **options)
        embedding = result if isinstance(result, Tensor) else getattr(result, _POOLED, None)
        if isinstance(embedding, Tensor):
            found["embedding"] = embedding
        return found

    def _keep_what_is_called(self) -> None:
        """Take off the children that a run does not reach: the other tower, its projection."""
        called: set[str] = set()

        def note(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: object) -> None:
                called.add(name)

            return hook

        children = dict(self.network.named_children())
        device = next(self.network.parameters()).device.type
        data = torch.no_grad() if device == "meta" else without_data()
        with contextlib.ExitStack() as stack:
            for name, child in children.items():
                stack.callback(child.register_forward_pre_hook(note(name)).remove)
            stack.enter_context(data)
            self(self.example(device))
        for name in children:
            if name not in called:
                delattr(self.network, name)


class VisionTower(Tower):
    """Pictures in."""

    method: ClassVar[str] = "get_image_features"
    part: ClassVar[str] = "vision_model"
    settings: ClassVar[str] = "vision_config"
    main_input_name: ClassVar[str] = "pixel_values"

    def example(self, device: str) -> Tensor:
        """A picture of the native size."""
        size = self.config.image_size
        pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        channels = int(getattr(self.config, "num_channels", 3) or 3)
        return torch.empty(1, channels, *pair, device=device)

    def forward(
        self, pixel_values: Tensor, interpolate_pos_encoding: bool = False
    ) -> dict[str, Tensor]:
        """pixel_values: [B, C, H, W]."""
        options: dict[str, Any] = {}
        if interpolate_pos_encoding and self.takes("interpolate_pos_encoding"):
            options["interpolate_pos_encoding"] = True
        return self.run(pixel_values, **options)


class TextTower(Tower):
    """Token ids in."""

    method: ClassVar[str] = "get_text_features"
    part: ClassVar[str] = "text_model"
    settings: ClassVar[str] = "text_config"
    main_input_name: ClassVar[str] = "input_ids"

    def example(self, device: str) -> Tensor:
        """A text of two tokens."""
        return torch.zeros(1, 2, dtype=torch.int64, device=device)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        """input_ids: [B, L]; attention_mask: [B, L], 1 where a token is read."""
        options = {} if attention_mask is None else {"attention_mask": attention_mask}
        return self.run(input_ids, **options)
