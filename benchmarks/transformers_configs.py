"""Small networks of the transformers library's vision families, made of its own config classes.

Few layers and small widths, so that a table over all families takes minutes; every mechanism of the
family is in: shifted windows, reduced keys, more than one stage, registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Small:
    """One class and the values of its config.

    Attributes:
        cls: class of transformers.
        values: arguments of its config class.
    """

    cls: str
    values: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "image_size": 96, "patch_size": 16}  # fmt: skip
_LABELS = {"num_labels": 5}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
         "window_size": 4, **_LABELS}  # fmt: skip
_BEIT = {**_PLAIN, "use_relative_position_bias": True, **_LABELS}
_SEGFORMER = {"num_encoder_blocks": 3, "depths": [1, 1, 1], "sr_ratios": [4, 2, 1],
              "hidden_sizes": [8, 16, 32], "patch_sizes": [7, 3, 3], "strides": [4, 2, 2],
              "num_attention_heads": [1, 2, 4], "mlp_ratios": [2, 2, 2]}  # fmt: skip
_SAM = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64,
        "patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "output_channels": 16,
        "mlp_dim": 64}  # fmt: skip
_PVT = {"image_size": 64, "num_encoder_blocks": 3, "depths": [1, 1, 1],
        "sequence_reduction_ratios": [4, 2, 1], "hidden_sizes": [8, 16, 32],
        "patch_sizes": [4, 2, 2], "strides": [4, 2, 2], "num_attention_heads": [1, 2, 4],
        "mlp_ratios": [2, 2, 2], **_LABELS}  # fmt: skip

SMALL: Mapping[str, Small] = {
    "vit": Small("ViTForImageClassification", {**_PLAIN, **_LABELS}),
    "deit": Small("DeiTForImageClassificationWithTeacher", {**_PLAIN, **_LABELS}),
    "dinov2": Small("Dinov2Model", {**_PLAIN, "image_size": 84, "patch_size": 14}),
    "dinov2_with_registers": Small(
        "Dinov2WithRegistersModel", {**_PLAIN, "image_size": 84, "patch_size": 14}
    ),
    "swin": Small("SwinForImageClassification", _SWIN),
    "swin-absolute": Small("SwinModel", {**_SWIN, "use_absolute_embeddings": True}),
    "swinv2": Small("Swinv2ForImageClassification", _SWIN),
    "swinv2-pretrained": Small(
        "Swinv2Model", {**_SWIN, "pretrained_window_sizes": [2, 2], "window_size": 4}
    ),
    "donut-swin": Small("DonutSwinModel", _SWIN),
    "beit": Small("BeitForImageClassification", _BEIT),
    "beit-absolute": Small("BeitModel", {**_BEIT, "use_absolute_position_embeddings": True}),
    "beit-shared": Small("BeitModel", {**_PLAIN, "use_shared_relative_position_bias": True}),
    "data2vec-vision": Small("Data2VecVisionForImageClassification", _BEIT),
    "dinov3_vit": Small("DINOv3ViTModel", {**_PLAIN, "num_register_tokens": 4}),
    "dinov3_convnext": Small(
        "DINOv3ConvNextModel",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 64},
    ),
    "segformer": Small("SegformerForImageClassification", {**_SEGFORMER, **_LABELS}),
    "segformer-semantic": Small(
        "SegformerForSemanticSegmentation", {**_SEGFORMER, "decoder_hidden_size": 16, **_LABELS}
    ),
    "vit_mae": Small("ViTMAEModel", _PLAIN),
    "yolos": Small(
        "YolosForObjectDetection",
        {**_PLAIN, "image_size": [64, 96], "num_detection_tokens": 7, **_LABELS},
    ),
    "sam": Small("SamVisionModel", _SAM),
    "vitdet": Small(
        "VitDetModel",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 96,
         "pretrain_image_size": 64, "patch_size": 16, "window_block_indices": [0],
         "window_size": 4, "residual_block_indices": [1],
         "use_relative_position_embeddings": True},
    ),
    "pvt": Small("PvtForImageClassification", _PVT),
    "pvt_v2": Small(
        "PvtV2ForImageClassification",
        {"num_encoder_blocks": 3, "depths": [1, 1, 1], "sr_ratios": [4, 2, 1],
         "hidden_sizes": [8, 16, 32], "patch_sizes": [7, 3, 3], "strides": [4, 2, 2],
         "num_attention_heads": [1, 2, 4], "mlp_ratios": [2, 2, 2], "image_size": 64, **_LABELS},
    ),
    "pvt_v2-linear": Small(
        "PvtV2ForImageClassification",
        {"num_encoder_blocks": 3, "depths": [1, 1, 1], "sr_ratios": [4, 2, 1],
         "hidden_sizes": [8, 16, 32], "patch_sizes": [7, 3, 3], "strides": [4, 2, 2],
         "num_attention_heads": [1, 2, 4], "mlp_ratios": [2, 2, 2], "image_size": 224,
         "linear_attention": True, **_LABELS},
    ),
    "hiera": Small(
        "HieraForImageClassification",
        {"embed_dim": 16, "image_size": [64, 64], "depths": [1, 1, 2], "num_heads": [1, 2, 4],
         "masked_unit_size": [4, 4], "masked_unit_attention": [True, True, False],
         "num_query_pool": 2, **_LABELS},
    ),
    "cvt": Small(
        "CvtForImageClassification",
        {"depth": [1, 2, 3], "embed_dim": [16, 16, 32], "num_heads": [1, 1, 2],
         "drop_path_rate": [0.0, 0.0, 0.0], **_LABELS},
    ),
    "mobilevit": Small(
        "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes":
         [8, 8, 16, 16, 24, 32, 48], **_LABELS},
    ),
    "mobilevitv2": Small(
        "MobileViTV2ForImageClassification",
        {"image_size": 64, "width_multiplier": 0.25, "base_attn_unit_dims": [32, 48, 64],
         "n_attn_blocks": [1, 1, 1], **_LABELS},
    ),
    "levit": Small(
        "LevitForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "depths": [1, 1, 1], "key_dim": [8, 8, 8],
         "num_attention_heads": [2, 3, 4],
         **_LABELS},
    ),
    "dpt": Small(
        "DPTForDepthEstimation",
        {**_PLAIN, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
         "neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16, "is_hybrid": False},
    ),
    "vit_msn": Small("ViTMSNModel", _PLAIN),
    "focalnet": Small(
        "FocalNetForImageClassification",
        {"image_size": 64, "embed_dim": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
         "focal_levels": [2, 2], "focal_windows": [3, 3], **_LABELS},
    ),
    "glpn": Small(
        "GLPNForDepthEstimation",
        {"num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32],
         "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2],
         "decoder_hidden_size": 16},
    ),
    "ijepa": Small("IJepaModel", _PLAIN),
    "swiftformer": Small(
        "SwiftFormerForImageClassification",
        {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 16, 24, 32], **_LABELS},
    ),
    "poolformer": Small(
        "PoolFormerForImageClassification",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], **_LABELS},
    ),
    "pixio": Small("PixioModel", _PLAIN),
    "vitpose_backbone": Small(
        "VitPoseBackbone", {**_PLAIN, "image_size": [96, 64], "patch_size": [16, 16]}
    ),
    "depth_anything": Small("DepthAnythingForDepthEstimation", {
        "reassemble_hidden_size": 32, "patch_size": 14, "neck_hidden_sizes": [8, 16, 24, 32],
        "fusion_hidden_size": 16, "head_hidden_size": 8,
        "backbone_config": {"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4,
                            "num_attention_heads": 2, "image_size": 84, "patch_size": 14,
                            "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False,
                            "apply_layernorm": True}}),
    "sapiens2": Small("Sapiens2Model", {**_PLAIN, "image_size": [96, 64]}),
}  # fmt: skip


def build(name: str) -> Any:
    """A network of a family with the library's own initial weights, in eval mode."""
    import transformers

    small = SMALL[name]
    cls: Any = getattr(transformers, small.cls)
    return cls(cls.config_class(**small.values)).eval()
