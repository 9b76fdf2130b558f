"""The PyTorch peer of `kinora bench pipeline`: PixArt-XL/2 with T5-XXL and Stable Diffusion's autoencoder, random
weights in bf16, from the tokens of a caption to pixels on the host. Wants torch and diffusers.

    python bench/peers/pixart_pipeline.py --mode compile-default,compile-max-autotune-no-cudagraphs --graph
    python bench/peers/pixart_pipeline.py --mode compile-reduce-overhead

The transformer (with fused projections), the autoencoder (channels_last) and DPM-Solver++ are diffusers', and what
happens between them is that of its PixArtAlphaPipeline: caption and negative caption are padded to --tokens and
masked, both are predicted in one batch. T5 is that of t5_encoder.py, with both captions in one batch, where
diffusers makes two. Doubling the batch and guidance are compiled with the transformer. --graph: each stage but the
solver's own arithmetic is captured as a CUDA graph by hand. Prints one line of JSON a measurement: the median ms of
whole runs, and of the stages, each waited for.
"""

import argparse
import statistics

import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtTransformer2DModel

import measure
import t5_encoder


def transformer(arguments):
    torch.manual_seed(1)
    with torch.device(arguments.device):
        model = PixArtTransformer2DModel(
            sample_size=arguments.size // 8, num_layers=arguments.layers, num_attention_heads=arguments.heads,
            attention_head_dim=72, cross_attention_dim=72 * arguments.heads, in_channels=4, out_channels=8,
            patch_size=2, caption_channels=t5_encoder.D_MODEL, use_additional_conditions=False)
    return model.requires_grad_(False).eval().to(torch.bfloat16)


def autoencoder(arguments):
    torch.manual_seed(2)
    with torch.device(arguments.device):
        model = AutoencoderKL(
            block_out_channels=[128, 256, 512, 512], layers_per_block=2,
            down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4)
    return model.requires_grad_(False).eval().to(torch.bfloat16, memory_format=torch.channels_last)


class Stage:
    """A function of tensors, replayed as a CUDA graph if `graph`."""

    def __init__(self, function, graph):
        self.function, self.graph, self.recorded = function, graph, None

    def __call__(self, *given):
        if not self.graph:
            return self.function(*given)
        if self.recorded is None:
            self.given = [tensor.clone() for tensor in given]
            self.recorded = measure.captured(self.compute)
        for mine, new in zip(self.given, given):
            mine.copy_(new)
        self.recorded.replay()
        return self.result

    def compute(self):
        self.result = self.function(*self.given)


class Pipeline:
    def __init__(self, arguments, mode):
        self.arguments, device = arguments, arguments.device
        self.scheduler = DPMSolverMultistepScheduler(algorithm_type="dpmsolver++", solver_order=2)
        made = t5_encoder.weights(arguments.text_layers, device)
        text_mode = "compile-default" if mode == "compile-reduce-overhead" else mode  # weights are arguments there
        t5 = t5_encoder.Encoder(made, arguments.text_layers, "sdpa", text_mode)
        buckets = t5_encoder.distance_buckets(arguments.tokens, device)
        self.valid = torch.zeros(2 * arguments.batch, arguments.tokens, dtype=torch.bool, device=device)
        self.valid[:arguments.batch, :arguments.caption_tokens] = True
        self.valid[arguments.batch:, :1] = True
        self.ids = torch.arange(self.valid.numel(), device=device).view_as(self.valid) % 32000
        self.encoder = Stage(lambda ids, valid: t5(ids, valid, buckets), arguments.graph)
        self.mask = self.valid.to(torch.bfloat16)
        model = transformer(arguments)
        model.fuse_qkv_projections()

        def predict(latents, text, mask, t):
            output = model(torch.cat([latents, latents]), encoder_hidden_states=text, encoder_attention_mask=mask,
                           timestep=t.expand(2 * latents.shape[0]),
                           added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False)[0]
            caption, negative = output.chunk(2)
            return (negative + arguments.guidance * (caption - negative)).chunk(2, dim=1)[0]

        vae = autoencoder(arguments)
        self.predict = Stage(measure.compiled(predict, mode), arguments.graph)
        decode = measure.compiled(lambda z: vae.decode(z / 0.18215, return_dict=False)[0], mode)
        self.decoder = Stage(decode, arguments.graph)

    def encode(self):
        self.text = self.encoder(self.ids, self.valid)

    def sample(self):
        arguments = self.arguments
        self.scheduler.set_timesteps(arguments.steps)
        generator = torch.Generator(arguments.device).manual_seed(0)
        latents = torch.randn(arguments.batch, 4, arguments.size // 8, arguments.size // 8, generator=generator,
                              device=arguments.device, dtype=torch.bfloat16)
        for t, moment in zip(self.scheduler.timesteps, self.scheduler.timesteps.to(arguments.device)):
            torch.compiler.cudagraph_mark_step_begin()
            predicted = self.predict(latents, self.text, self.mask, moment)
            latents = self.scheduler.step(predicted, t, latents, return_dict=False)[0]
        self.latents = latents

    def decode(self):
        latents = self.latents.to(memory_format=torch.channels_last)
        self.pixels = self.decoder(latents).float().cpu()

    def run(self):
        self.encode()
        self.sample()
        self.decode()


def time_mode(arguments, mode):
    device = arguments.device
    with torch.no_grad():
        pipeline = Pipeline(arguments, mode)
        for _ in range(arguments.warmup):
            pipeline.run()
        if not torch.isfinite(pipeline.pixels).all():
            raise RuntimeError("the pixels are not finite")
        measure.synchronize(device)
        measure.reset_peak_memory(device)
        stages = {"ms": pipeline.run, "encode_ms": pipeline.encode, "sample_ms": pipeline.sample,
                  "decode_ms": pipeline.decode}
        times = {name: [] for name in stages}
        for _ in range(arguments.repeats):
            for name, stage in stages.items():
                times[name].append(measure.seconds(stage, device))
    return {**{name: round(statistics.median(seconds) * 1000, 2) for name, seconds in times.items()},
            "peak_memory_gib": measure.peak_memory_gib(device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1, help="pictures")
    parser.add_argument("--size", type=int, default=512, help="pixels a side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=4.5)
    parser.add_argument("--layers", type=int, default=28, help="blocks of the transformer")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--text-layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=120, help="captions are padded to so many")
    parser.add_argument("--caption-tokens", type=int, default=20)
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--graph", action="store_true", help="stages as CUDA graphs, captured by hand")
    parser.add_argument("--warmup", type=int, default=3, help="runs before timing")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs; the median is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)
    measure.run_all([
        ({"device": measure.device_name(arguments.device), "mode": mode + (" with graphs" if arguments.graph else ""),
          "batch": arguments.batch, "size": arguments.size, "steps": arguments.steps,
          "text_layers": arguments.text_layers},
         lambda mode=mode: time_mode(arguments, mode))
        for mode in arguments.mode])


if __name__ == "__main__":
    main()
