"""Loads a pipeline whose text encoder is another model, which diffusers itself does not support."""

import json
from pathlib import Path

from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import AutoTokenizer, BertModel


def load(folder):
    """The pipeline in f32, with the settings of `model_index.json`. The text encoder is the model that it names, in the parent folder."""
    folder = Path(folder)
    index = json.loads((folder / "model_index.json").read_text())
    minilm = folder.parent / index["text_encoder"][1]
    encoder = BertModel.from_pretrained(minilm, add_pooling_layer=False)
    encoder.config.use_attention_mask = index["_use_attention_mask"]
    return StableDiffusionPipeline(
        vae=AutoencoderKL.from_pretrained(folder / "vae"),
        text_encoder=encoder,
        tokenizer=AutoTokenizer.from_pretrained(minilm, model_max_length=index["_max_length"]),
        unet=UNet2DConditionModel.from_pretrained(folder / "unet"),
        scheduler=DPMSolverMultistepScheduler.from_pretrained(folder / "scheduler"),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )
