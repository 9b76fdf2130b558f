"""The PyTorch peer of `kinora bench train` and `kinora bench sample` for the transformers of Wan, LTX-Video and CogVideoX:
diffusers' own classes, random weights. Wants torch and diffusers.

    python bench/peers/clips.py --model wan --work lora --mode compile-default --checkpointing
    python bench/peers/clips.py --model wan --work sample --frames 21 --mode compile-default --graph
    python bench/peers/clips.py --model ltx --work lora --mode compile-default
    python bench/peers/clips.py --model wan --hidden 48 --heads 4 --layers 2 --frames 2 --rows 4 --columns 4 --device cpu

Sizes are those of Wan 2.1 T2V-1.3B at 480 x 832 pixels, of LTX-Video 2B at 512 x 704 and of CogVideoX-5B at 480 x 720 unless
the options say others; frames, rows and columns are those of latents. Training: latents and the text's states lie in the device's memory;
forward (bf16 autocast over fp32 weights), the mean squared error of the velocity, backward, fused AdamW without an
average. LoRA: updates of the blocks' linears over frozen weights in bf16, in fp32, as PEFT computes them. Sampling:
weights in bf16, one forward and a step of Euler; --graph captures both as a CUDA graph by hand. --regional compiles the
blocks, not the whole. Prints one line of JSON a measurement, the median of blocks of steps.
"""

import argparse

import torch
import torch.nn.functional as F
from diffusers import CogVideoXTransformer3DModel, LTXVideoTransformer3DModel, WanTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed

import measure
import train_dit
import unet

STATES = 4096  # width of UMT5-XXL's and of T5-XXL's
SIZES = {
    "wan": {"hidden": 1536, "heads": 12, "mlp": 8960, "layers": 30, "text": 512, "frames": 13, "rows": 60, "columns": 104},
    "ltx": {"hidden": 2048, "heads": 32, "mlp": 8192, "layers": 28, "text": 128, "frames": 7, "rows": 16, "columns": 22},
    "cogvideox": {"hidden": 3072, "heads": 48, "mlp": 12288, "layers": 42, "text": 226, "frames": 13, "rows": 60, "columns": 90},
}
CHANNELS = {"wan": 16, "ltx": 128, "cogvideox": 16}


def build(arguments, dtype):
    torch.manual_seed(0)
    sizes = {"num_attention_heads": arguments.heads, "attention_head_dim": arguments.hidden // arguments.heads,
             "num_layers": arguments.layers}
    with torch.device(arguments.device):
        if arguments.model == "wan":
            return WanTransformer3DModel(**sizes, text_dim=STATES, ffn_dim=arguments.mlp).to(dtype)
        if arguments.model == "cogvideox":
            return CogVideoXTransformer3DModel(**sizes, text_embed_dim=STATES, max_text_seq_length=arguments.text,
                                               use_rotary_positional_embeddings=True).to(dtype)
        return LTXVideoTransformer3DModel(**sizes, cross_attention_dim=arguments.hidden, caption_channels=STATES).to(dtype)


class Clips:
    """Latents and states, and how the class takes them: x_t and predictions are as it has them."""

    def __init__(self, arguments):
        device, batch = arguments.device, arguments.batch
        self.kind = arguments.model
        frames, rows, columns = self.grid = (arguments.frames, arguments.rows, arguments.columns)
        channels = CHANNELS[self.kind]
        shapes = {"wan": (channels, *self.grid), "ltx": (frames * rows * columns, channels),
                  "cogvideox": (frames, channels, rows, columns)}
        self.x0 = torch.randn(batch, *shapes[self.kind], device=device)
        self.text = torch.randn(batch, arguments.text, STATES, device=device)
        self.mask = torch.ones(batch, arguments.text, device=device, dtype=torch.bool)
        # Eight frames of 25 a second, and 32 pixels.
        self.scale = (8 / 25, 32, 32)
        if self.kind == "cogvideox":
            patches = (rows // 2, columns // 2)
            self.rotary = get_3d_rotary_pos_embed(arguments.hidden // arguments.heads, ((0, 0), patches), patches, frames,
                                                  device=device)

    def share(self, t):
        return t.view(-1, *[1] * (self.x0.dim() - 1))

    def predict(self, model, x_t, t, text):
        if self.kind == "wan":
            return model(hidden_states=x_t, timestep=t * 1000, encoder_hidden_states=text, return_dict=False)[0]
        if self.kind == "cogvideox":
            return model(hidden_states=x_t, timestep=t * 1000, encoder_hidden_states=text, image_rotary_emb=self.rotary,
                         return_dict=False)[0]
        frames, rows, columns = self.grid
        return model(hidden_states=x_t, timestep=t * 1000, encoder_hidden_states=text, encoder_attention_mask=self.mask,
                     num_frames=frames, height=rows, width=columns, rope_interpolation_scale=self.scale,
                     return_dict=False)[0]


def compiled(arguments, model, compute, mode):
    if not arguments.regional:
        return measure.compiled(compute, mode)
    measure.compiled_blocks(model, model._repeated_blocks or ["CogVideoXBlock"], mode)  # which says none
    return compute


def training(arguments, mode):
    model = build(arguments, torch.bfloat16 if arguments.work == "lora" else torch.float32).train()
    if arguments.checkpointing:
        model.enable_gradient_checkpointing()
    if arguments.work == "lora":
        parameters = unet.add_updates(model, arguments.rank, lambda name: "blocks." in name and ".norm" not in name)
    else:
        parameters = list(model.parameters())
    clips = Clips(arguments)

    def compute(x0, text, t, noise):
        share = clips.share(t)
        with torch.autocast(arguments.device.split(":")[0], torch.bfloat16):
            predicted = clips.predict(model, (1 - share) * x0 + share * noise, t, text)
        return F.mse_loss(predicted.float(), noise - x0)

    loss_of = compiled(arguments, model, compute, mode)
    update = train_dit.Update(parameters, "fused", 0.0, False, average=False)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        t = torch.rand(arguments.batch, device=arguments.device)
        loss_of(clips.x0, clips.text, t, torch.randn_like(clips.x0)).backward()
        update.step()
        for p in parameters:
            p.grad = None

    return step, model


def sampling(arguments, mode):
    model = build(arguments, torch.bfloat16).requires_grad_(False).eval()
    clips = Clips(arguments)
    x, text = clips.x0, clips.text.to(model.dtype)
    t = torch.full((arguments.batch,), 0.5, device=arguments.device)

    def compute(x, t, text):
        return x - 0.01 * clips.predict(model, x.to(model.dtype), t, text).float()

    one = compiled(arguments, model, compute, mode)

    def advance():
        x.copy_(one(x, t, text))

    return measure.sampling_step(advance, arguments.graph), model


def measured(arguments, mode):
    step, model = (sampling if arguments.work == "sample" else training)(arguments, mode)
    return measure.timed_steps(step, model, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(SIZES), default="wan")
    parser.add_argument("--work", choices=["train", "lora", "sample"], default="train")
    for name in SIZES["wan"]:
        parser.add_argument("--" + name, type=int)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--regional", action="store_true", help="compile blocks by themselves, not the whole")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--graph", action="store_true", help="sampling: a CUDA graph captured by hand")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=3)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    for name, size in SIZES[arguments.model].items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, size)
    measure.prepare_device(arguments)
    description = {"peer": arguments.model, "work": arguments.work,
                   **{name: getattr(arguments, name) for name in SIZES[arguments.model]}, "batch": arguments.batch,
                   "device": measure.device_name(arguments.device)}
    measure.run_all(({**description, "mode": mode}, lambda mode=mode: measured(arguments, mode))
                    for mode in arguments.mode)


if __name__ == "__main__":
    main()
