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
        tower: of a class with two.
        part: the submodule that reads pictures, of a class that reads more.
    """

    cls: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tower: str = ""
    part: str = ""


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


def _two_towers(*, projection: bool = True) -> dict[str, Any]:
    """A composed config of CLIP's kind."""
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 20,
            "eos_token_id": 98, "bos_token_id": 97, "pad_token_id": 1}  # fmt: skip
    vision = dict(_PLAIN)
    more: dict[str, Any] = {"projection_dim": 24} if projection else {}
    return {"text_config": {**text, **more}, "vision_config": {**vision, **more}, **more}


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
    "clip-vision": Small("CLIPModel", _two_towers(), tower="vision"),
    "clip-text": Small("CLIPModel", _two_towers(), tower="text"),
    "siglip-vision": Small("SiglipModel", _two_towers(projection=False), tower="vision"),
    "siglip-text": Small("SiglipModel", _two_towers(projection=False), tower="text"),
    "owlvit-vision": Small("OwlViTVisionModel", _PLAIN),
    "aimv2": Small("Aimv2VisionModel", _PLAIN),
    "aimv2-native": Small("Aimv2VisionModel", {**_PLAIN, "is_native": True}),
    "videomae": Small("VideoMAEModel", {**_PLAIN, "num_frames": 4, "tubelet_size": 2}),
    "timesformer": Small("TimesformerModel", {**_PLAIN, "num_frames": 4}),
    "vivit": Small("VivitModel", {**_PLAIN, "num_frames": 4, "tubelet_size": [2, 16, 16]}),
}  # fmt: skip

_DINOV2 = {"model_type": "dinov2", **_PLAIN, "num_hidden_layers": 4, "image_size": 84,
           "patch_size": 14, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False,
           "apply_layernorm": True}  # fmt: skip

OTHERS: Mapping[str, Small] = {
    "vit-model": Small("ViTModel", {**_PLAIN, "image_size": [96, 64]}),
    "vit-masked": Small("ViTForMaskedImageModeling", {**_PLAIN, "encoder_stride": 16}),
    "deit-model": Small("DeiTModel", _PLAIN),
    "dinov2-labels": Small(
        "Dinov2ForImageClassification", {**_PLAIN, "image_size": 84, "patch_size": 14, **_LABELS}
    ),
    "dinov3-labels": Small("DINOv3ViTForImageClassification", {**_PLAIN, **_LABELS}),
    "beit-semantic": Small(
        "BeitForSemanticSegmentation",
        {**_BEIT, "num_hidden_layers": 4, "out_indices": [0, 1, 2, 3], "pool_scales": [1, 2]},
    ),
    "clip-vision-model": Small("CLIPVisionModel", _PLAIN),
    "clip-vision-projection": Small("CLIPVisionModelWithProjection", _PLAIN),
    "clip-text-model": Small("CLIPTextModel", _two_towers()["text_config"]),
    "clip-labels": Small("CLIPForImageClassification", {**_two_towers(), **_LABELS}),
    "siglip-vision-model": Small("SiglipVisionModel", _PLAIN),
    "siglip-text-model": Small("SiglipTextModel", _two_towers()["text_config"]),
    "siglip-labels": Small("SiglipForImageClassification",
                           {**_two_towers(projection=False), **_LABELS}),
    "siglip2-vision": Small("Siglip2VisionModel", _PLAIN),
    "altclip-vision": Small("AltCLIPVisionModel", _PLAIN),
    "chinese_clip-vision": Small("ChineseCLIPVisionModel", _PLAIN),
    "clipseg-vision": Small("CLIPSegVisionModel", _PLAIN),
    "metaclip_2-vision": Small("MetaClip2VisionModel", _PLAIN),
    "x_clip-vision": Small("XCLIPVisionModel", _PLAIN),
    "groupvit-vision": Small(
        "GroupViTVisionModel",
        {**_PLAIN, "depths": [1, 1, 1], "num_group_tokens": [4, 4, 0],
         "num_output_groups": [4, 4, 0]},
    ),
    "owlv2-vision": Small("Owlv2VisionModel", _PLAIN),
    "blip-vision": Small("BlipVisionModel", _PLAIN),
    "blip_2-vision": Small("Blip2VisionModel", _PLAIN),
    "instructblip-vision": Small("InstructBlipVisionModel", _PLAIN),
    "flava-image": Small("FlavaImageModel", _PLAIN),
    "kosmos2-vision": Small("Kosmos2VisionModel", _PLAIN),
    "mlcd": Small("MLCDVisionModel", _PLAIN),
    "internvl-vision": Small(
        "InternVLVisionModel", {**_PLAIN, "image_size": [96, 96], "patch_size": [16, 16]}
    ),
    "janus-vision": Small("JanusVisionModel", _PLAIN),
    "pixtral-vision": Small("PixtralVisionModel", _PLAIN),
    "idefics2-vision": Small("Idefics2VisionTransformer", _PLAIN),
    "idefics3-vision": Small("Idefics3VisionTransformer", _PLAIN),
    "aimv2-model": Small("Aimv2Model", _two_towers(), tower="vision"),
    "radio": Small("RadioModel", _PLAIN),
    "zoedepth": Small(
        "ZoeDepthForDepthEstimation",
        {"backbone_config": {"model_type": "beit", **_BEIT, "num_hidden_layers": 4,
                             "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False},
         "neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16,
         "bottleneck_features": 16, "num_relative_features": 8},
    ),
    "prompt_depth_anything": Small(
        "PromptDepthAnythingForDepthEstimation",
        {"reassemble_hidden_size": 32, "patch_size": 14, "neck_hidden_sizes": [8, 16, 24, 32],
         "fusion_hidden_size": 16, "head_hidden_size": 8, "backbone_config": _DINOV2},
    ),
    "vitmatte": Small(
        "VitMatteForImageMatting",
        {"hidden_size": 32, "backbone_config": {
            "model_type": "vitdet", "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 96, "num_channels": 4,
            "use_relative_position_embeddings": True, "out_features": ["stage2"]},
         "fusion_hidden_sizes": [32, 16, 8, 8], "convstream_hidden_sizes": [8, 8, 16]},
    ),
    "vitpose": Small(
        "VitPoseForPoseEstimation",
        {"backbone_config": {"model_type": "vitpose_backbone", **_PLAIN, "image_size": [96, 64],
                             "patch_size": [16, 16], "out_indices": [2]},
         "num_labels": 5, "scale_factor": 4},
    ),
    "upernet-swin": Small(
        "UperNetForSemanticSegmentation",
        {"backbone_config": {"model_type": "swin", **_SWIN, "out_indices": [1, 2]},
         "hidden_size": 16, "pool_scales": [1, 2], "use_auxiliary_head": False, **_LABELS},
    ),
    "maskformer-swin": Small("MaskFormerSwinModel", _SWIN),
    "swin-backbone": Small("SwinBackbone", {**_SWIN, "out_indices": [1, 2]}),
    "dinov2-backbone": Small(
        "Dinov2Backbone", {**_PLAIN, "image_size": 84, "patch_size": 14, "out_indices": [1, 2]}
    ),
    "swin2sr": Small(
        "Swin2SRForImageSuperResolution",
        {"image_size": 32, "patch_size": 1, "embed_dim": 16, "depths": [2, 2],
         "num_heads": [2, 2], "window_size": 4},
    ),
    "mgp_str": Small(
        "MgpstrForSceneTextRecognition",
        {"image_size": [32, 64], "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2, "max_token_length": 5, "num_bpe_labels": 20,
         "num_wordpiece_labels": 20, "num_character_labels": 9},
    ),
    "seggpt": Small("SegGptModel", {**_PLAIN, "image_size": [96, 48], "pretrain_image_size": 48,
                                    "intermediate_hidden_state_indices": [0, 1],
                                    "merge_index": 0, "decoder_hidden_size": 8}),
    "sam_hq": Small("SamHQVisionModel", _SAM),
    "sam2-vision": Small(
        "Sam2VisionModel",
        {"backbone_config": {"model_type": "sam2_hiera_det_model", "hidden_size": 16,
                             "image_size": [128, 128], "num_attention_heads": 1,
                             "blocks_per_stage": [1, 1, 2, 1],
                             "embed_dim_per_stage": [16, 32, 64, 128],
                             "num_attention_heads_per_stage": [1, 2, 4, 8],
                             "window_size_per_stage": [4, 2, 4, 2],
                             "window_positional_embedding_background_size": [7, 7],
                             "global_attention_blocks": [2]},
         "backbone_channel_list": [128, 64, 32, 16], "fpn_hidden_size": 16,
         "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
    ),
    "convnext": Small("ConvNextModel", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
    "bit": Small("BitModel", {"hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1],
                              "embedding_size": 32}),
    "eomt": Small("EomtForUniversalSegmentation",
                  {**_PLAIN, "num_blocks": 1, "num_queries": 4, "num_upscale_blocks": 1,
                   **_LABELS}),
    "depth_pro": Small("DepthProModel", {
        "patch_size": 48, "fusion_hidden_size": 16, "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16], "scaled_images_ratios": [0.5, 1.0],
        "scaled_images_overlap_ratios": [0.0, 0.2], "scaled_images_feature_dims": [16, 16],
        "image_model_config": _DINOV2, "patch_model_config": _DINOV2, "fov_model_config": _DINOV2}),
    "timm_wrapper": Small("TimmWrapperModel", {"architecture": "vit_tiny_patch16_224",
                                               "model_args": {"depth": 2}}),
}  # fmt: skip
"""Further classes of the same mechanisms."""


def build(name: str) -> Any:
    """A network of a family with the library's own initial weights, in eval mode."""
    import transformers

    small = {**OTHERS, **SMALL}[name]
    cls: Any = getattr(transformers, small.cls)
    return cls(cls.config_class(**small.values)).eval()
