#include "kinora/train/run_config.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/core/error.h"

namespace kinora::train {
namespace {

// Nothing that runs has more, and sums of them fit into their types.
constexpr double kMostSteps = 1e12;
constexpr double kMostSamples = 1048576;  // of a batch
constexpr double kMostRanks = 65536;
constexpr double kLargestFloat = 3e38;  // about that of 32 bits, in which weights are updated

void describe_train(Fields& fields, RunConfig& config) {
  TrainOptions& train = config.train;
  const auto scope = fields.scope("train");
  fields.add("steps", train.steps, "Optimizer step at which training stops.",
             between(0, kMostSteps));
  fields.add("global_batch", train.global_batch, "Samples in an optimizer step, over all ranks.",
             between(1, kMostSamples));
  fields
      .add("micro_batch", train.micro_batch,
           "Samples computed at once; the rest of the global batch is accumulated. 0 = all.",
           between(0, kMostSamples))
      .check("divide train.global_batch", [&train] {
        return train.micro_batch == 0 || train.global_batch % train.micro_batch == 0;
      });
  describe_precision(fields, config);
  fields.add("fp8", train.fp8,
             "Matrix products of the blocks in 8-bit floats (Ada, Hopper or newer; the fast path "
             "with train.precision bf16 or fp16); everything else as train.precision says.");
  fields.add(
      "fp8_scaling", train.fp8_scaling,
      {{"delayed", ops::Fp8Scaling::kDelayed},
       {"current", ops::Fp8Scaling::kCurrent},
       {"block", ops::Fp8Scaling::kBlock}},
      "Scales of the 8-bit inputs and gradients: delayed = one a tensor, from its largest "
      "magnitudes in the last 16 steps; current = one a tensor, from its own magnitude; "
      "block = one for each 128 elements along the product's sum (Hopper). The last two take "
      "more passes over memory, and no first step that only measures.");
  fields.add(
      "recompute", train.recompute,
      "Compute activations again in backward, which saves memory and costs up to a third more "
      "time: none, elementwise (norms and GELU), mlp (and the MLP's first product), block (every "
      "block), block:K (the first K blocks), or block:K,elementwise or block:K,mlp (the first K "
      "blocks whole, and so much of the others). Or have what blocks keep wait in the host's "
      "memory, which takes the link's time instead of the GPU's: offload (every block), offload:K "
      "(K blocks, spread evenly), and behind either ,elementwise ,mlp or ,block for what every "
      "block computes again, so that less has to go; or ,block:J ,block:J,elementwise or "
      ",block:J,mlp, where the first J of those that do not wait keep only their input, on the "
      "GPU. All but block and block:K need the fast path.");
  fields
      .add("fp8_activations", train.fp8_activations,
           "Keep what blocks compute for backward in 8 bits, with a scale for each 128 numbers: "
           "half "
           "of the memory, and of what train.recompute=offload moves. Forward is as without it, "
           "gradients differ a little. The fast path, with train.precision bf16 or fp16.")
      .check("be false with train.precision=fp32", [&config] {
        return !config.train.fp8_activations || config.precision != Precision::kFp32;
      });
  fields.add(
      "vram_budget", train.vram_budget,
      "Most of the GPU's memory that the run takes, its context and libraries included: none, "
      "auto (what is free) or a size such as 8GiB. Where the recipe needs more, the fastest "
      "of train.recompute, train.micro_batch, optim.offload and optim.offload_weights (of recipes "
      "that freeze weights finetune.offload) and, with several ranks, "
      "parallel.plugin is taken that fits, and said.");
  fields.add("oom", train.oom, {{"stop", OutOfMemory::kStop}, {"replan", OutOfMemory::kReplan}},
             "What is done when memory is too little for a step: stop = an error with what is "
             "known; replan = the run goes on from its last state with the fastest settings of "
             "train.vram_budget's search that need less than those it had. They stay with the run "
             "(replanned.txt).");
  fields.add("graph_memory_gib", train.graph_memory_gib,
             "GiB that CUDA graphs (kernels.graphs) of the sizes of data.buckets may take: sizes "
             "for which so much is too little run without one, and the log says which. 0 = what "
             "leaves room for the largest size without a graph.",
             {.min = 0.0, .max = 65536.0});
  fields.add("seed", train.seed, "Keys every random number of the run.", at_least(0));
  describe_deterministic(fields, config);
  fields.add(
      "device", train.device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "Where to compute; auto = a GPU if there is one.");
  fields.add(
      "threads", train.threads,
      "CPU threads of the computation; 0 = as many as cores. Results depend on it in the last "
      "bits.",
      between(0, 4096));
  fields.add("label_dropout", train.label_dropout,
             "Share of the labels or captions that training replaces by the null one, for "
             "guidance.",
             between(0, 1));
  fields.add("pooled_dropout", train.pooled_dropout,
             "Models that read a vector of captions beside their tokens: share of the captions "
             "whose vector training replaces by the null one, whether their tokens stay or not "
             "(Open-Sora 2: 0.31622777, as label_dropout then); 0 = those whose tokens are.",
             between(0, 1));
  fields.add("max_skipped", train.max_skipped,
             "Stop the run after this many steps in a row whose gradients are not finite.",
             between(1, kMostSteps));
  fields.add(
      "self_test", train.self_test,
      "After 20 steps, stop with the names of parameters that got no gradient or never moved. Of "
      "sgd and prodigy, whose first steps may be tiny, those that never moved are a warning.");
  fields.add("log_every", train.log_every,
             "Steps between entries of TensorBoard (log.jsonl has all).", between(1, kMostSteps));
  fields.add(
      "stall_timeout", train.stall_timeout,
      "Several ranks: after this many seconds without progress on any of them, print a table of "
      "all ranks and end the run. In checkpoints, validation and samples it takes six times as "
      "many. 0 = never.",
      between(0, 1e9));
  fields.add("profile_from", train.profile_from,
             "Step from which train.profile_steps steps are traced.", between(0, kMostSteps));
  fields.add(
      "profile_steps", train.profile_steps,
      "Trace this many steps: every rank writes what its GPU did, and when, to "
      "profile-rank0.json, ... in the run directory, for chrome://tracing or Perfetto. 0 = none.",
      between(0, 10000));
}

void describe_parallel(Fields& fields, RunConfig& config) {
  PluginConfig& parallel = config.parallel;
  const auto scope = fields.scope("parallel");
  fields.add("plugin", config.plugin,
             "Booster's name for the strategy: ddp, zero1, zero2, zero3, gemini (zero3, with "
             "optim.offload and optim.offload_weights) or hybrid; empty, or hybrid = as the other "
             "keys say.");
  fields.add(
      "zero_stage", parallel.zero_stage,
      "What the ranks along shard divide: 0 = nothing; 1 = master weights, moments and "
      "averages; 2 = and gradients; 3 = and what forward reads. -1 = as plugin says, else 0.",
      between(-1, 3));
  fields.add("replicate", parallel.replicate,
             "Groups of ranks that each divide the whole state (hybrid sharding).",
             between(1, kMostRanks));
  fields.add("shard", parallel.shard,
             "Ranks that compute on different samples and divide the state as zero_stage says. 0 = "
             "the ranks that remain.",
             between(0, kMostRanks));
  using Scheme = parallel::SequenceScheme;
  fields.add("sequence", parallel.sp_size,
             "Ranks that divide the tokens of each sample (sequence parallelism).",
             between(1, kMostRanks));
  fields.add(
      "tensor", parallel.tp_size,
      "Ranks that divide the heads and the MLPs of each block (tensor parallelism): each has "
      "a part of the weights, and of what training keeps for them.",
      between(1, kMostRanks));
  fields
      .add("divided_norms", parallel.divided_norms,
           "The ranks of parallel.tensor divide the tokens, too, wherever blocks treat each by "
           "itself: norms, gates and what training keeps of them (Megatron's sequence "
           "parallelism). Less memory and arithmetic, as much exchange.")
      .check("be false unless parallel.tensor is above 1",
             [&parallel] { return !parallel.divided_norms || parallel.tp_size > 1; });
  fields.add("pipeline", parallel.pp_size,
             "Ranks that divide the blocks (pipeline parallelism): each has consecutive ones, and "
             "sends what they make of a micro-batch to the next.",
             between(1, kMostRanks));
  fields.add("pipeline_chunks", parallel.pp_chunks,
             "Stages of each rank of parallel.pipeline, so that a step's micro-batches, a multiple "
             "of parallel.pipeline, go around the ranks as often: less waiting, more exchange.",
             between(1, kMostRanks));
  fields.add("pipeline_schedule", parallel.pp_schedule,
             {{"1f1b", parallel::PipelineSchedule::k1F1B},
              {"zero_bubble", parallel::PipelineSchedule::kZeroBubble}},
             "Order of forward and backward passes of a pipeline: 1f1b = by turns; zero_bubble = "
             "also, with the gradients of weights computed where a rank would wait (on the fast "
             "path).");
  fields.add("sequence_scheme", parallel.sequence_scheme,
             {{"auto", Scheme::kAuto},
              {"ulysses", Scheme::kUlysses},
              {"fastseq", Scheme::kFastSeq},
              {"dsp", Scheme::kDsp},
              {"ring", Scheme::kRing},
              {"nd_ring", Scheme::kNdRing},
              {"usp", Scheme::kUsp}},
             "How attention reaches the tokens of other ranks; auto = the cheapest by the measured "
             "links.");
  fields
      .add(
          "dynamic_sequence", config.dynamic_sequence,
          "Each size of data.buckets has its own number of ranks that divide its samples: 1, 2, 4, "
          "... or parallel.sequence, whichever lets all ranks end a step soonest, by times that "
          "the run measures at its start (train.deterministic: by counted arithmetic). A step has "
          "data.bucket_batches batches, each of a bucket of its own.")
      .check("be false unless data.buckets says which sizes there are",
             [&config] { return !config.dynamic_sequence || !config.data.buckets.empty(); });
  fields
      .add("reduce_type", parallel.reduce_type,
           {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
           "Type in which gradients travel between ranks and are summed: fp32, or bf16 for half "
           "the bytes.")
      .check("be fp32 or bf16", [&parallel] { return parallel.reduce_type != Precision::kFp16; });
  fields.add(
      "fp8_across", parallel.fp8_across,
      "Send what crosses hosts (divided gradients and weights) in 8 bits, with a scale for each "
      "128 numbers; sums are fp32.");
  fields.add(
      "bucket_mib", parallel.bucket_mib,
      "MiB of fp32 gradients that are exchanged at once: neighbouring buckets of the model (a "
      "block each) are joined until they have as much. The default, 0, picks the smallest power "
      "of two at which latency is at most about a tenth of the time, as measured on the links of "
      "GPUs. On CPUs, with zero_stage 3 (which keeps two buckets whole) and with "
      "train.deterministic it joins none.",
      between(0, 1024));
  fields.add("reduce_each_micro_batch", parallel.reduce_each_micro_batch,
             "zero_stage 2 and 3: reduce gradients after each micro-batch, so that no rank keeps "
             "them whole; false = once a step, with the memory of whole gradients.");
}

void describe_lr(Fields& fields, optim::LrSchedule& lr) {
  using Kind = optim::LrSchedule::Kind;
  const auto scope = fields.scope("lr");
  fields.add("schedule", lr.kind,
             {{"constant", Kind::kConstant}, {"cosine", Kind::kCosine}, {"linear", Kind::kLinear}},
             "How the learning rate goes on after the warm-up.");
  fields.add("value", lr.value, "Highest learning rate.", between(0, kLargestFloat));
  fields.add("warmup", lr.warmup, "Optimizer steps of linear warm-up.", between(0, kMostSteps));
  fields
      .add("horizon", lr.horizon,
           "Optimizer step at which cosine and linear end, warm-up included; independent of "
           "train.steps.",
           between(0, kMostSteps))
      .check("be above lr.warmup for cosine and linear",
             [&lr] { return lr.kind == Kind::kConstant || lr.horizon > lr.warmup; });
  fields.add("final_fraction", lr.final_fraction, "Share of lr.value from the horizon on.",
             between(0, 1));
}

void describe_optim(Fields& fields, optim::OptimizerConfig& optim) {
  const auto scope = fields.scope("optim");
  const Range decay{.min = 0, .max = 1, .min_open = false, .max_open = true};
  std::vector<Choice<kernels::UpdateRule>> rules;
  for (const kernels::UpdateRule rule : optim::kUpdateRules) {
    rules.push_back({optim::to_string(rule), rule});
  }
  fields.add(
      "rule", optim.rule, std::move(rules),
      "How weights follow their gradients. lion keeps one moment, and wants a learning rate "
      "3 to 10 times smaller than adamw's; sgd has momentum; muon keeps one moment of the "
      "blocks' matrices and makes their updates orthogonal, with adamw for all else; "
      "adafactor keeps next to nothing: the means of rows and columns of squares; came adds one "
      "moment to it, and trusts its steps less where they differ from that; lamb makes adamw's "
      "updates as long as each parameter, for large batches; prodigy finds adamw's "
      "learning rate by itself, with lr.value=1; schedule_free wants lr.schedule=constant: a mean "
      "of all its weights, which is what is sampled, stands for a rate that falls.");
  const auto takes_one_pass = [&optim] { return optim::takes_one_pass(optim.rule); };
  std::vector<Choice<kernels::MomentFormat>> moments;
  for (const auto format : {kernels::MomentFormat::kF32, kernels::MomentFormat::k8Bit}) {
    moments.push_back({optim::to_string(format), format});
  }
  fields
      .add("moments", optim.moments, std::move(moments),
           "How moments are kept: fp32, or 8bit = codes of 8 bits with a scale for each 256 of "
           "them, a quarter of the memory.")
      .check(
          "be fp32 unless optim.rule is adamw, lion or sgd: updates by others are more than one "
          "pass over the moments, adafactor has none of that size, and schedule_free keeps weights",
          [&optim, takes_one_pass] {
            return optim.moments == kernels::MomentFormat::kF32 ||
                   (takes_one_pass() && optim::keeps_first_moments(optim.rule));
          });
  std::vector<Choice<kernels::MasterFormat>> masters;
  for (const auto format : {kernels::MasterFormat::kF32, kernels::MasterFormat::kBF16}) {
    masters.push_back({optim::to_string(format), format});
  }
  fields.add("master", optim.masters, std::move(masters),
             "How weights are kept: fp32 beside a copy that forward reads, or bf16 = that copy "
             "alone, rounded stochastically (train.precision=bf16).");
  fields.add("momentum", optim.momentum, "muon: decay of the momentum of matrices.", decay);
  fields.add("beta1", optim.beta1,
             "Decay of the first moment; sgd: the momentum; muon: of what is no matrix; "
             "schedule_free: the mean's share in the weights.",
             decay);
  fields.add("beta2", optim.beta2,
             "Decay of the second moment, of lion's momentum; 0 = 0.999, 0.99 of lion.", decay);
  fields.add("beta3", optim.beta3, "came: decay of how far its steps are from their mean.", decay);
  fields.add(
      "eps", optim.eps,
      "adamw, muon, lamb, prodigy and schedule_free: added to the root of the second moment.",
      above(0, 1));
  fields.add("d0", optim.d0,
             "prodigy: the distance between the first and the best weights that it begins with.",
             above(0, 1));
  fields.add("d_coef", optim.d_coef,
             "prodigy: its estimates of that distance are multiplied by this.", above(0, 1e6));
  fields.add(
      "weight_decay", optim.weight_decay,
      "Decay of every parameter, decoupled; sgd: added to the gradient; lamb: to the update.",
      between(0, 1000));
  fields.add("max_grad_norm", optim.max_grad_norm,
             "Clip gradients to this global norm; 0 = no clipping.", between(0, 1e12));
  fields
      .add("offload", optim.offload,
           "Share of the blocks whose fp32 weights, moments and averages lie in the host's memory "
           "and not in the GPU's. Updates of these take longer.",
           between(0, 1))
      .check(
          "be 0 unless optim.rule is adamw, lion, sgd, adafactor or schedule_free: updates by "
          "others are more "
          "than "
          "one pass over the state",
          [&optim, takes_one_pass] { return optim.offload == 0.0 || takes_one_pass(); });
  fields
      .add("offload_weights", optim.offload_weights,
           "Share of the blocks, at most optim.offload, whose weights and gradients lie in the "
           "host's memory, too. Each block comes over the link while the one before it computes.",
           between(0, 1))
      .check("be at most optim.offload",
             [&optim] { return optim.offload_weights <= optim.offload; })
      .check("be 0 with optim.disk",
             [&optim] { return optim.offload_weights == 0.0 || optim.disk.empty(); });
  fields
      .add(
          "in_backward", optim.in_backward,
          "Update each block during backward, as soon as its gradients are there: gradients of two "
          "blocks at a time take memory, and updates of what lies in the host's memory go on "
          "meanwhile. The same weights. A step whose gradients are not finite ends the run.")
      .check("be false unless optim.rule is adamw, lion, sgd or schedule_free",
             [&optim, takes_one_pass] {
               return !optim.in_backward || (takes_one_pass() && !optim::keeps_factors(optim.rule));
             })
      .check("be false with optim.max_grad_norm, which needs the norm of all gradients first",
             [&optim] { return !optim.in_backward || optim.max_grad_norm == 0.0; })
      .check("be false with optim.disk",
             [&optim] { return !optim.in_backward || optim.disk.empty(); });
  fields
      .add("disk", optim.disk,
           "Folder on a fast disk: the share that optim.offload says lies in a file there, without "
           "a name, and not in the host's memory. Beside a GPU the host's cores update it. Empty = "
           "none.")
      .check("be empty with optim.offload=0, which offloads nothing",
             [&optim] { return optim.disk.empty() || optim.offload > 0.0; })
      .check("be empty with optim.rule=schedule_free, whose base it has no place for", [&optim] {
        return optim.disk.empty() || optim.rule != kernels::UpdateRule::kScheduleFree;
      });
}

/// What a step takes of a second set, in the scope of its section. whole: its global batch.
template <typename Steps>
void describe_batch(Fields& fields, const std::string& section, Steps& steps,
                    const std::string& samples, const std::function<int64_t()>& whole) {
  fields.add("global_batch", steps.global_batch,
             samples + ", over all ranks. 0 = train.global_batch.", between(0, kMostSamples));
  fields
      .add("micro_batch", steps.micro_batch,
           "Samples of it computed at once; the rest is accumulated. 0 = all.",
           between(0, kMostSamples))
      .check("divide " + section + ".global_batch", [&steps, whole] {
        return steps.micro_batch == 0 || whole() % steps.micro_batch == 0;
      });
}

void describe_image_data(Fields& fields, RunConfig& config) {
  ImageSteps& steps = config.image_steps;
  {
    const auto scope = fields.scope("image_data");
    fields
        .add("share", steps.share,
             "Share of the steps that take all their samples from image_data, a second set with "
             "the keys of data: single images for a model of clips, as clips of one frame. The "
             "steps are drawn at random. 0 = none.",
             {.min = 0, .max = 1, .min_open = false, .max_open = true})
        .check("be 0 unless image_data.frames is 1",
               [&config] { return !config.image_steps.any() || config.image_data.frames == 1; })
        .check(
            "be 0 unless image_data.validation is 0: what is held out are samples of data",
            [&config] { return !config.image_steps.any() || config.image_data.validation == 0; });
    describe_batch(fields, "image_data", steps, "Samples in such a step",
                   [&config] { return config.image_batch(); });
  }
  describe(fields, config.image_data, "image_data");
}

void describe_prior_data(Fields& fields, RunConfig& config) {
  PriorBatch& prior = config.prior;
  {
    const auto scope = fields.scope("prior_data");
    fields
        .add(
            "weight", prior.weight,
            "Every step also takes samples of prior_data, a second set with the keys of data, such "
            "as pictures that the model drew of a class before it learns one thing of it "
            "(DreamBooth), and adds this times their mean loss. 0 = none.",
            between(0, 1e6))
        .check("be 0 unless prior_data.validation is 0: what is held out are samples of data",
               [&config] { return !config.prior.any() || config.prior_data.validation == 0; })
        .check("be 0 unless prior_data.buckets is {}",
               [&config] { return !config.prior.any() || config.prior_data.buckets.empty(); })
        .check("be 0 with image_data.share, whose steps take other samples",
               [&config] { return !config.prior.any() || !config.image_steps.any(); });
    describe_batch(fields, "prior_data", prior, "Samples of it in a step",
                   [&config] { return config.prior_batch(); });
  }
  describe(fields, config.prior_data, "prior_data");
}

void describe_checkpoint(Fields& fields, RunConfig& config) {
  CheckpointOptions& checkpoint = config.checkpoint;
  const auto scope = fields.scope("checkpoint");
  fields.add("every", checkpoint.every,
             "Steps between checkpoints; 0 = only when the run ends or is stopped.",
             between(0, kMostSteps));
  fields.add("keep_last", checkpoint.keep_last,
             "Keep this many of the newest checkpoints; 0 = all.", between(0, kMostSteps));
  fields.add("keep_every", checkpoint.keep_every,
             "Keep for good the checkpoints of steps that are a multiple of this; 0 = none.",
             between(0, kMostSteps));
  fields
      .add("init_from", checkpoint.init_from,
           "Weights to start from: a run or a checkpoint, a .safetensors or PyTorch .pt file with "
           "the "
           "model's key names, or of diffusers.")
      .check(
          "be given for finetune.lora, finetune.fresh, finetune.positions, "
          "finetune.frozen_weights and finetune.offload",
          [&config] {
            const inference::FinetuneConfig& finetune = config.finetune;
            return !config.checkpoint.init_from.empty() ||
                   (!finetune.lora.any() && finetune.fresh.empty() && !finetune.holds() &&
                    finetune.positions == inference::PositionChoice::kSame);
          });
  fields.add("export", checkpoint.export_weights,
             "Write model.safetensors (the averaged weights in fp32, low-rank updates merged) when "
             "the run ends, and of a run with finetune.lora also adapter/ as PEFT has it.");
}

void describe_validation(Fields& fields, RunConfig& config) {
  const auto scope = fields.scope("validation");
  ValidationOptions& validation = config.validation;
  fields
      .add("every", validation.every,
           "Steps between validations on the data.validation held-out images, each with a fixed t "
           "and "
           "fixed noise; 0 = never.",
           between(0, kMostSteps))
      .check("be 0 unless data.validation is positive",
             [&config] { return config.validation.every == 0 || config.data.validation > 0; });
  fields
      .add("bands", validation.bands, "Equal bands of t whose loss is reported apart.",
           between(1, 1000))
      .check("divide data.validation",
             [&config] { return config.data.validation % config.validation.bands == 0; });
}

int64_t micro_batch_of(const char* section, int64_t global_batch, int64_t micro_batch,
                       int64_t data_ranks) {
  KINORA_CHECK(global_batch % data_ranks == 0, kConfig, "[train] ", section,
               ".global_batch must be a multiple of the ", data_ranks,
               " ranks that compute on it, got ", global_batch);
  const int64_t own = global_batch / data_ranks;
  KINORA_CHECK(micro_batch == 0 || own % micro_batch == 0, kConfig, "[train] ", section,
               ".micro_batch must divide the ", own, " samples of a rank (", global_batch, " of ",
               data_ranks, " ranks), got ", micro_batch);
  return micro_batch > 0 ? micro_batch : own;
}

}  // namespace

void describe(Fields& fields, RunConfig& config) {
  fields.add("run.dir", config.run_dir, "Folder of the run: config, log, samples, checkpoints.")
      .required();
  describe(fields, config.model);
  describe_kernels(fields, config);
  describe(fields, config.data);
  describe_image_data(fields, config);
  describe_prior_data(fields, config);
  describe_autoencoder(fields, config.autoencoder);
  describe_text(fields, config.text);
  describe_image(fields, config.image);
  describe(fields, config.objective);
  describe_train(fields, config);
  describe_frame_masks(fields, config);
  describe_parallel(fields, config);
  describe_lr(fields, config.lr);
  describe(fields, config.lr_factors);
  describe(fields, config.finetune);
  describe_optim(fields, config.optim);
  describe_averages(fields, config);
  describe_checkpoint(fields, config);
  describe_validation(fields, config);
  const auto scope = fields.scope("sample");
  fields.add("every", config.shown.every, "Steps between grids of samples; 0 = never.",
             between(0, kMostSteps));
  describe_sample_count(fields, config);
  fields.add("format", config.shown.format,
             {{"webp", io::ClipFormat::kWebp},
              {"gif", io::ClipFormat::kGif},
              {"mp4", io::ClipFormat::kMp4}},
             "How clips that are drawn while training are written beside their grid: webp "
             "(lossless), gif, mp4 (H.264; wants FFmpeg).");
  describe(fields, config.sample.sampling);
}

int64_t RunConfig::micro_batch(int64_t data_ranks) const {
  const int64_t size = micro_batch_of("train", train.global_batch, train.micro_batch, data_ranks);
  if (train.micro_batch > 0 || parallel.pp_size == 1) {
    return size;
  }
  // Of a pipeline's micro-batches the first and the last make ranks wait: so many that these are
  // few.
  const int64_t wanted = 4 * parallel.pp_size;
  int64_t best = 1;
  for (int64_t divisor = 1; divisor <= size; ++divisor) {
    const int64_t count = size / divisor;
    if (size % divisor == 0 && count >= wanted && count % parallel.pp_size == 0) {
      best = divisor;
    }
  }
  return best;
}

int64_t RunConfig::image_micro_batch(int64_t data_ranks) const {
  return micro_batch_of("image_data", image_batch(), image_steps.micro_batch, data_ranks);
}

int64_t RunConfig::prior_micro_batch(int64_t data_ranks) const {
  return micro_batch_of("prior_data", prior_batch(), prior.micro_batch, data_ranks);
}

}  // namespace kinora::train
