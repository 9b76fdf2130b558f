"""Writes a pipeline's folder with random weights in bf16. Wants torch, diffusers, transformers and safetensors.

    python bench/make_pipeline_folder.py FOLDER                # 10.2 GiB, for `kinora bench load FOLDER`
    python bench/make_pipeline_folder.py FOLDER --kind sdxl    # 6.5 GiB, for `kinora sample --model FOLDER`
    python bench/make_pipeline_folder.py FOLDER --kind sd15    # 2 GiB, to fine-tune

pixart: PixArt-XL/2 512 px with T5-XXL and Stable Diffusion's autoencoder; sdxl, sd15: Stable Diffusion XL and 1.5, whose
tokenizers are the small ones of the tests.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from diffusers import DPMSolverMultistepScheduler
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import pixart_pipeline
import sdxl_pipeline
import t5_encoder


def write_text_encoder(folder, layers, device):
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.cpu() for name, value in t5_encoder.weights(layers, device).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["T5EncoderModel"], "model_type": "t5", "feed_forward_proj": "gated-gelu",
        "d_model": t5_encoder.D_MODEL, "d_kv": t5_encoder.D_KV, "d_ff": t5_encoder.D_FF,
        "num_heads": t5_encoder.HEADS, "num_layers": layers, "vocab_size": t5_encoder.VOCAB}))


def write_pixart(folder, arguments):
    arguments.size, arguments.heads = 512, 16
    write_text_encoder(folder / "text_encoder", arguments.text_layers, arguments.device)
    pixart_pipeline.transformer(arguments).save_pretrained(folder / "transformer")
    pixart_pipeline.autoencoder(arguments).save_pretrained(folder / "vae")
    DPMSolverMultistepScheduler(algorithm_type="dpmsolver++", solver_order=2).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps({
        "_class_name": "PixArtAlphaPipeline", "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
        "text_encoder": ["transformers", "T5EncoderModel"], "tokenizer": ["transformers", "T5Tokenizer"],
        "transformer": ["diffusers", "PixArtTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=["pixart", "sdxl", "sd15"], default="pixart")
    parser.add_argument("--size", type=int, default=1024, help="of SDXL's pictures")
    parser.add_argument("--small", action="store_true", help="Stable Diffusion of a few channels, to try this")
    parser.add_argument("--layers", type=int, default=28, help="blocks of the transformer")
    parser.add_argument("--text-layers", type=int, default=24)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.kind == "pixart":
        write_pixart(arguments.folder, arguments)
    elif arguments.kind == "sd15":
        sdxl_pipeline.random_sd15(arguments).save_pretrained(arguments.folder)
    else:
        sdxl_pipeline.random_pipeline(arguments).save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
