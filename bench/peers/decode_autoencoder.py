"""The PyTorch peer of `kinora bench decode`: diffusers' autoencoders with random weights, channels_last.
Wants torch and diffusers.

    python bench/peers/decode_autoencoder.py --height 1024 --width 1024 \
        --mode eager,compile-default,compile-reduce-overhead,compile-max-autotune-no-cudagraphs
    python bench/peers/decode_autoencoder.py --kind hunyuan --frames 33 --height 720 --width 1280 --tiled

`--kind image` is AutoencoderKL at Stable Diffusion's sizes; `hunyuan` and `wan` are those of clips, of
which --frames counts latent frames and the decoder is what is compiled. `--save FOLDER` writes it, for
`kinora bench decode --autoencoder FOLDER`, and ends. Prints one line of JSON a measurement: ms for a
batch, the median of --blocks blocks.
"""

import argparse

import diffusers
import torch

import measure

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KINDS = {
    "image": lambda: diffusers.AutoencoderKL(
        block_out_channels=[128, 256, 512, 512], layers_per_block=2,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4),
    "hunyuan": diffusers.AutoencoderKLHunyuanVideo,
    "wan": diffusers.AutoencoderKLWan,
}


def build(arguments):
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = KINDS[arguments.kind]()
    model = model.requires_grad_(False).eval()
    if arguments.tiled:
        model.enable_tiling()
    model = model.to(TYPES[arguments.weights])
    for parameter in model.parameters():
        parameter.data = in_layout(arguments, parameter.data)
    return model


def in_layout(arguments, tensor):
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    if arguments.contiguous or tensor.dim() not in layouts:
        return tensor
    return tensor.to(memory_format=layouts[tensor.dim()])


def time_mode(arguments, mode):
    device = arguments.device
    model = build(arguments)
    type_ = TYPES[arguments.weights]
    if arguments.kind != "image":
        shape = [arguments.batch, model.config.get("latent_channels") or model.config.z_dim,
                 arguments.frames, arguments.height // 8, arguments.width // 8]
        model.decoder = measure.compiled(model.decoder, mode)
        compute = lambda z: model.decode(z).sample
    elif arguments.encode:
        shape = [arguments.batch, 3, arguments.height, arguments.width]
        compute = measure.compiled(lambda x: model.encode(x).latent_dist.parameters, mode)
    else:
        shape = [arguments.batch, 4, arguments.height // 8, arguments.width // 8]
        compute = measure.compiled(lambda z: model.decode(z).sample, mode)
    given = in_layout(arguments, torch.randn(shape, device=device, dtype=type_))

    def run():
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            return compute(given)

    for _ in range(arguments.warmup):
        result = run()
    if not torch.isfinite(result).all():
        raise RuntimeError("the result is not finite")
    del result
    measure.synchronize(device)
    measure.reset_peak_memory(device)  # what compiling took is not counted
    milliseconds = measure.milliseconds(run, device, warmup=0, repeats=arguments.repeats,
                                        blocks=arguments.blocks)
    return {"ms": round(milliseconds, 3),
            "images_per_s": round(arguments.batch / milliseconds * 1000, 3),
            "peak_memory_gib": measure.peak_memory_gib(device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=list(KINDS), default="image")
    parser.add_argument("--frames", type=int, default=33, help="latent frames of a clip")
    parser.add_argument("--tiled", action="store_true", help="enable_tiling()")
    parser.add_argument("--contiguous", action="store_true", help="not channels_last")
    parser.add_argument("--save", help="write the autoencoder to this folder in fp16, and end")
    parser.add_argument("--encode", action="store_true", help="of images")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--height", type=int, default=1024)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--weights", choices=list(TYPES), default="bf16")
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--warmup", type=int, default=3, help="runs before timing")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs a block")
    parser.add_argument("--blocks", type=int, default=5)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    if arguments.save:
        KINDS[arguments.kind]().half().save_pretrained(arguments.save)
        return
    measure.prepare_device(arguments)
    measure.run_all([
        ({"device": measure.device_name(arguments.device),
          "work": "encode" if arguments.encode else "decode", "kind": arguments.kind,
          "tiled": arguments.tiled, "contiguous": arguments.contiguous, "mode": mode,
          "weights": arguments.weights, "batch": arguments.batch, "height": arguments.height,
          "width": arguments.width},
         lambda mode=mode: time_mode(arguments, mode))
        for mode in arguments.mode])


if __name__ == "__main__":
    main()
