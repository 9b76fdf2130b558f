#!/usr/bin/env python3
"""Writes tests/eval/data/clip/ and tests/models/data/{clip_image,clip_image_l14}.safetensors: what
transformers' CLIP makes of pictures and prompts. Wants torch, transformers 5, compel 2.5, pillow.

  clip/          a CLIPModel as a folder of transformers, but without its weights, which are formula.py's,
                 and without its tokenizer, which is that of tests/tokenizers/data/clip
  clip/expected.safetensors
    pixels.N     fp32 [3, 24, 24]: of picture N by CLIPImageProcessor on Pillow
    images, texts   fp32 [pictures, P], [prompts, P]: image_embeds, text_embeds, of length 1
    long.N       fp32 [tokens, C]: of prompt N of metadata's long_prompts, in pieces of 77 tokens, as Compel
                 (truncate_long_prompts=False, split anywhere) embeds it, but for padding behind the end
    The metadata has the prompts and the pictures' sizes. The pixels of a picture are formula.py's.
  clip_image, clip_image_l14   embeds [B, P], of float64: the image tower alone, tiny, and one block of
                 ViT-L/14's width
"""

import json
import pathlib

import numpy
import PIL.Image
import torch
import transformers
from compel.embeddings_provider import EmbeddingsProvider, SplitLongTextMode

import formula
import tensor_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = [[24, 24], [40, 61], [61, 40], [20, 20], [300, 260]]
PROMPTS = ["a red circle", "two blue squares above a star", "", "A Very Long " + "long " * 100 + "text"]
LONG_PROMPTS = ["a red circle", "red circle " * 20 + "and a star", "many blue squares, " * 20]
CONFIG = {"projection_dim": 6,
          "text_config": {"vocab_size": 1064, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "max_position_embeddings": 77, "bos_token_id": 1062,
                          "eos_token_id": 1063, "pad_token_id": 1063, "hidden_act": "quick_gelu"},
          "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
                            "num_attention_heads": 4, "image_size": 24, "patch_size": 7,
                            "hidden_act": "quick_gelu"}}


def picture(number, height, width):
    values = formula.values(f"picture.{number}", [height, width, 3])
    pixels = ((values.float() + 1.0) * 128.0).floor().clamp(0, 255).to(torch.uint8)
    return PIL.Image.fromarray(numpy.array(pixels.tolist(), dtype=numpy.uint8))


def folder():
    out = ROOT / "tests/eval/data/clip"
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "tests/tokenizers/data/clip")
    assert tokenizer.eos_token_id == 1063 and len(tokenizer) == 1064, (tokenizer.eos_token_id, len(tokenizer))
    config = transformers.CLIPConfig(**CONFIG)
    model = transformers.CLIPModel._from_config(config, attn_implementation="eager")
    model.double().eval()
    formula.fill(model)
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    pictures = [picture(number, *size) for number, size in enumerate(SIZES)]
    pixels = torch.cat([torch.tensor(processor(each, return_tensors="np").pixel_values) for each in pictures])
    ids = tokenizer(PROMPTS, padding="max_length", truncation=True, max_length=77, return_tensors="pt")
    with torch.no_grad():
        out_of = model(pixel_values=pixels.double(), **ids)
    tensors = {f"pixels.{number}": each.float() for number, each in enumerate(pixels)}
    tensors |= {"images": out_of.image_embeds.float(), "texts": out_of.text_embeds.float()}
    provider = EmbeddingsProvider(tokenizer, model.text_model, truncate=False, model_max_length=77,
                                  split_long_text_mode=SplitLongTextMode.BRUTAL,
                                  dtype_for_device_getter=lambda device: torch.float64)
    for number, text in enumerate(LONG_PROMPTS):
        count = len(tokenizer(text, add_special_tokens=False).input_ids)
        with torch.no_grad():
            states = provider.get_embeddings_for_weighted_prompt_fragments([[text]], [[1.0]])[0]
        tensors[f"long.{number}"] = states[: count + 2 * -(-count // 75)].float()
        print("long", number, count, list(states.shape))
    tensor_file.save(out / "expected.safetensors", tensors,
                     {"long_prompts": json.dumps(LONG_PROMPTS), "prompts": json.dumps(PROMPTS), "sizes": json.dumps(SIZES)})
    config.architectures = ["CLIPModel"]
    (out / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True, default=str) + "\n")
    (out / "preprocessor_config.json").write_text(processor.to_json_string())
    print("cosines", (out_of.image_embeds @ out_of.text_embeds.T).numpy().round(3).tolist())


def tower(name, count, **sizes):
    config = transformers.CLIPVisionConfig(**sizes)
    model = transformers.CLIPVisionModelWithProjection._from_config(config, attn_implementation="eager")
    model.double().eval()
    formula.fill(model)
    pixels = formula.values("pixels", [count, 3, config.image_size, config.image_size])
    with torch.no_grad():
        embeds = model(pixel_values=pixels).image_embeds
    tensor_file.save(ROOT / f"tests/models/data/{name}.safetensors", {"embeds": embeds.float()}, {})
    print(name, embeds.shape, float(embeds.norm()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder()
    tower("clip_image", 3, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
          image_size=22, patch_size=5, projection_dim=10, hidden_act="gelu")
    tower("clip_image_l14", 2, hidden_size=1024, intermediate_size=4096, num_hidden_layers=1,
          num_attention_heads=16, image_size=56, patch_size=14, projection_dim=768)
