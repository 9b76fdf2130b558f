"""What the PyTorch peers share: modes of compilation, timing, one line of JSON a measurement."""

import gc
import json
import resource
import statistics
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "reference"))

# Options of torch.compile. None: eager. "graph" captures by hand what the program says.
MODES = {
    "eager": None,
    "compile-default": {},
    "compile-reduce-overhead": {"mode": "reduce-overhead"},
    "compile-max-autotune": {"mode": "max-autotune"},
    "compile-max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "compile-graph": {},
}
ATTENTION = {
    "auto": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def names_of(choices):
    """An argparse type: names of `choices` with commas between them."""

    def parse(text):
        names = text.split(",")
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}")
        return names

    parse.__name__ = f"list of {', '.join(choices)}"
    return parse


def add_device_arguments(parser):
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads")


def prepare_device(arguments, tf32=False):
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # the patch embedding's convolution


def compiled(function, mode):
    options = MODES[mode]
    if options is None:
        return function
    return torch.compile(function, dynamic=False, fullgraph=True, **options)


def compiled_blocks(model, names, mode):
    """Compiles the modules of these classes by themselves, and what is around them not."""
    if MODES[mode] is not None:
        for module in model.modules():
            if type(module).__name__ in names:
                module.compile(dynamic=False, fullgraph=True, **MODES[mode])


def attention(name):
    """A context in which scaled_dot_product_attention is the one asked for ("auto": torch's choice)."""
    backend = ATTENTION[name]
    return nullcontext() if backend is None else sdpa_kernel(backend)


class ContiguousGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        del context
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        del context
        return gradient.clone(memory_format=torch.contiguous_format)


def make_attention_contiguous():
    """From now on scaled_dot_product_attention's inputs and its result's gradient are contiguous. Of more than one sample
    laid out as diffusers' Flux has them, cuDNN's backward in torch 2.11 reads memory that is not there."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def contiguous(query, key, value, **options):
        return ContiguousGradient.apply(attention(query.contiguous(), key.contiguous(), value.contiguous(), **options))

    torch.nn.functional.scaled_dot_product_attention = contiguous


def synchronize(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(function, device):
    """Of one call, everything that it enqueued included."""
    synchronize(device)
    begin = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - begin


def milliseconds(function, device, warmup=3, repeats=20, blocks=5):
    """Median over blocks of the time of one call in a block of `repeats`."""

    def block():
        for _ in range(repeats):
            function()

    for _ in range(warmup):
        function()
    return statistics.median(seconds(block, device) for _ in range(blocks)) / repeats * 1000


def captured(function, warmup=3):
    """A CUDA graph of what `function` enqueues, after some calls of it on a stream of their own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def reset_peak_memory(device):
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()


def peak_memory_gib(device):
    """Of the tensors on a GPU; of the process on a CPU."""
    if device.startswith("cuda"):
        return round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)


def device_name(device):
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


def copy_gbps(device, size):
    """Bytes read and written by a copy of `size` bytes, in 1e9 a second."""
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return round(2 * size / milliseconds(lambda: target.copy_(source), device) / 1e6, 1)


def sampling_step(advance, in_graph):
    """`advance` without gradients, as a captured graph or as calls."""
    with torch.no_grad():
        if in_graph:
            return captured(advance).replay

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            advance()

    return step


def timed_steps(step, model, arguments):
    """Of arguments.blocks blocks of arguments.steps steps behind arguments.warmup ones: their median."""

    def block():
        for _ in range(arguments.steps):
            step()

    for _ in range(arguments.warmup):
        step()
    synchronize(arguments.device)
    reset_peak_memory(arguments.device)
    times = [seconds(block, arguments.device) / arguments.steps * 1000 for _ in range(arguments.blocks)]
    return {"parameters": sum(p.numel() for p in model.parameters()),
            "ms_per_step": round(statistics.median(times), 3), "ms_min": round(min(times), 3),
            "ms_max": round(max(times), 3), "peak_memory_gib": peak_memory_gib(arguments.device)}


def run_all(measurements):
    """Runs (description, function) pairs one after another and prints each result as a line of
    JSON. A failure is a line with "error", and the exit status is then 1."""
    failed = False
    for description, function in measurements:
        try:
            result = function()
        except Exception as error:  # the next ones may work
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"[:500]}
            failed = True
        print(json.dumps({"torch": torch.__version__, **description, **result}), flush=True)
        # Compiled code, CUDA graphs and their memory.
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    sys.exit(failed)
