#include "kinora/inference/recipe.h"

#include <algorithm>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/inference/conditions.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/models/unconditional.h"

namespace kinora::inference {

void describe_kernels(Fields& fields, ModelRecipe& recipe) {
  fields.add("model.path", recipe.path,
             {{"auto", Path::kAuto}, {"plain", Path::kPlain}, {"fast", Path::kFast}},
             "How blocks are computed: plain = libtorch's calls one by one; fast = fused kernels "
             "with a written-out backward. auto = fast for bf16 and fp16 on a GPU, but plain with "
             "finetune.lora.dora, loha or lokr.");
  const auto scope = fields.scope("kernels");
  const auto add = [&fields](const char* name, ops::Switch& value, const char* help) {
    fields.add(name, value,
               {{"auto", ops::Switch::kAuto}, {"on", ops::Switch::kOn}, {"off", ops::Switch::kOff}},
               help);
  };
  add("adaln", recipe.kernels.adaln,
      "Gate, residual, norm and modulation as one kernel. auto = where it can run; on = refuse to "
      "run without; off = composed of libtorch's calls.");
  add("attention", recipe.kernels.attention,
      "Own or cuDNN's fused attention, whichever is faster. off = unfused.");
  add("epilogue", recipe.kernels.epilogue,
      "Matrix products by cuBLASLt with bias and GELU inside and algorithms searched by timing.");
  add("optimizer", recipe.kernels.optimizer,
      "The update of weights, averages and rounding in one kernel.");
  add("graphs", recipe.kernels.graphs, "The step as CUDA graphs: no launch overhead.");
}

void describe_autoencoder(Fields& fields, AutoencoderOptions& autoencoder) {
  const auto scope = fields.scope("autoencoder");
  fields.add("path", autoencoder.path,
             "A frozen autoencoder, a folder or file: training on pixels encodes them in each "
             "step, and the model learns their latents.");
  fields.add("precision", autoencoder.precision,
             {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
             "Type of its arithmetic.");
  fields.add("micro_batch", autoencoder.micro_batch,
             "Images or clips that it encodes at once; 0 = 32.", between(0, 65536));
  fields.add("memory_gib", autoencoder.memory_gib,
             "GiB that its activations may take; within them the same numbers are computed piece "
             "by piece. 0 = no limit.",
             between(0, 1e6));
  fields.add("decode_level", autoencoder.decode_level,
             "Of drawing: how noisy latents are, as a decoder is told that wants to know it "
             "(LTX-Video from 0.9.1 on: 0.05).",
             between(0, 1));
  fields.add("decode_noise", autoencoder.decode_noise,
             "Of drawing, with such a decoder: how much of the latents becomes noise before "
             "(0.025); less than 0 = decode_level.",
             between(-1, 1));
}

void describe_text(Fields& fields, TextOptions& text) {
  const auto scope = fields.scope("text");
  fields.add(
      "encoder", text.encoder,
      "A frozen text encoder (T5, CLIP), a folder or file: training with data.text tokens "
      "encodes captions in each step, and prompts are encoded where samples are drawn. Stable "
      "Diffusion's also makes the empty caption that stands for dropped ones.");
  fields.add("train", text.train,
             "U-Nets: text.encoder, a CLIP, is trained with the model, in fp32, and kept with it; "
             "data.text must be tokens. lr.factors gives it a rate of its own: "
             "[text_encoder.*=0.1].");
  fields.add(
      "new_tokens", text.new_tokens,
      "With text.train: tokens that captions may have besides the tokenizer's, each TOKEN=WORDS, "
      "whose embeddings start as the mean of those of the words: [<shirt>=shirt]. "
      "finetune.train [text_encoder.new_tokens] learns them alone (textual inversion).");
  fields.add("precision", text.precision,
             {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
             "Type of its weights and arithmetic.");
  fields
      .add("weights", text.weights,
           {{"full", TextWeights::kFull}, {"int8", TextWeights::kInt8}, {"fp8", TextWeights::kFp8}},
           "How the linears of its blocks are kept: full, as text.precision; int8 or fp8, with a "
           "scale for each output channel, widened to text.precision at each use. Half of the "
           "memory of 16 bits; states differ a little.")
      .check("be full with text.train, which changes them",
             [&text] { return !text.train || text.weights == TextWeights::kFull; })
      .check("be full with text.shared, whose ranks gather blocks as text.precision",
             [&text] { return !text.shared || text.weights == TextWeights::kFull; });
  fields.add("micro_batch", text.micro_batch, "Captions that it encodes at once; 0 = 64.",
             between(0, 65536));
  fields.add(
      "shared", text.shared,
      "In training on several ranks each holds a part of the encoder's blocks, and a block is "
      "gathered when it computes. Less memory, and captions are encoded between the steps, "
      "not beside them.");
  fields.add("tokenizer", text.tokenizer,
             "The tokenizer of data.text tokens: a folder as Hugging Face lays it out, or a file "
             "of it. Default: that of text.encoder, in its folder or beside it.");
  fields.add("max_length", text.max_length,
             "Tokens of the longest caption, special ones counted; of longer ones the rest is cut "
             "off. 0 = model.text_tokens, but no more than the tokenizer says.",
             between(0, models::kMostTokens));
  fields.add(
      "clean", text.clean,
      {{"auto", ops::Switch::kAuto}, {"on", ops::Switch::kOn}, {"off", ops::Switch::kOff}},
      "Clean captions as PixArt and Open-Sora were trained on them (lower case, without "
      "addresses, tags and file names). auto = of models of tokens, but not of a frozen CLIP's "
      "(Stable Diffusion), not of a pooled vector, and not of Wan.");
}

void describe_image(Fields& fields, ImageOptions& image) {
  fields.add("image.encoder", image.encoder,
             "A frozen image encoder (CLIP's image tower), a folder: what it says of given frames "
             "is read by models with model.image_channels (Wan 2.1's image to video).");
}

void describe_precision(Fields& fields, ModelRecipe& recipe) {
  fields.add("precision", recipe.precision,
             {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
             "Type of the blocks' arithmetic; weights, moments and averages are fp32 always.");
}

void describe_deterministic(Fields& fields, ModelRecipe& recipe) {
  fields.add("deterministic", recipe.deterministic,
             "Use only kernels that give the same bits each time (GPU; somewhat slower).");
}

void describe_frame_masks(Fields& fields, ModelRecipe& recipe) {
  const auto scope = fields.scope("frame_masks");
  describe(fields, recipe.frame_masks);
}

void describe_averages(Fields& fields, ModelRecipe& recipe) {
  fields
      .add("ema.decays", recipe.ema_decays,
           "Decays of the averaged weights, at most 4; the first is what is sampled from. [] = "
           "none.",
           {.min = 0, .max = 1, .min_open = false, .max_open = true})
      .check("be at most 4 numbers", [&recipe] { return recipe.ema_decays.size() <= 4; });
}

void describe_sample_count(Fields& fields, ModelRecipe& recipe) {
  fields.add("count", recipe.sample.count, "Samples in a grid while training.", between(1, 4096));
}

void describe(Fields& fields, ModelRecipe& recipe) {
  describe(fields, recipe.model);
  describe_kernels(fields, recipe);
  describe(fields, recipe.data);
  describe_autoencoder(fields, recipe.autoencoder);
  describe_text(fields, recipe.text);
  describe_image(fields, recipe.image);
  describe(fields, recipe.objective);
  {
    const auto scope = fields.scope("train");
    describe_precision(fields, recipe);
    describe_deterministic(fields, recipe);
  }
  describe_frame_masks(fields, recipe);
  describe(fields, recipe.finetune);
  describe_averages(fields, recipe);
  {
    const auto scope = fields.scope("sample");
    describe_sample_count(fields, recipe);
    describe(fields, recipe.sample.sampling);
  }
  for (const char* others : {"run", "image_data", "prior_data", "train", "parallel", "lr", "optim",
                             "checkpoint", "validation", "sample.every", "sample.format"}) {
    fields.skip(others);
  }
}

models::ModelConfig resolved_model(const ModelRecipe& recipe, int64_t num_data_classes,
                                   const std::optional<LatentSize>& latents) {
  models::ModelConfig model = recipe.model;
  const bool of_latents =
      recipe.data.source == data::SourceKind::kLatents || !recipe.autoencoder.path.empty();
  KINORA_CHECK(!of_latents || latents || (model.height > 0 && model.width > 0), kConfig,
               "[train] model.height and model.width must be given where neither latents nor the "
               "autoencoder are opened, got ",
               model.height, " x ", model.width);
  const LatentSize size = latents.value_or(
      LatentSize{.shape = {.channels = 0, .height = recipe.data.height, .width = recipe.data.width},
                 .frames = recipe.data.frames});
  model.height = model.height == 0 ? size.shape.height : model.height;
  model.width = model.width == 0 ? size.shape.width : model.width;
  model.frames = model.frames == 0 ? size.frames : model.frames;
  if (model.compression == 1 && size.shape.pixel_height > 0) {
    model.compression = std::max<int64_t>(size.shape.pixel_height / size.shape.height, 1);
  }
  model = models::resolved(model);
  if (model.num_classes == 0) {
    model.num_classes = num_data_classes;
  }
  KINORA_CHECK(model.num_classes >= num_data_classes || models::is_unconditional(model), kConfig,
               "[train] the data has ", num_data_classes, " classes, but model.num_classes is ",
               model.num_classes, ". Hint: leave it at 0 to take the data's");
  if (model.time_scale == 0.0) {
    const bool flow = recipe.objective.kind == diffusion::ObjectiveConfig::Kind::kFlow;
    model.time_scale = flow ? 1000.0 : 1.0;
  }
  return model;
}

namespace {

double size_shift_of(const models::ModelConfig& model, const diffusion::Objective& objective) {
  return diffusion::size_shift(
      objective,
      extent_of(model, {.frames = model.frames, .height = model.height, .width = model.width}));
}

}  // namespace

diffusion::Sampler sampler_of(const ModelRecipe& recipe, const diffusion::Objective& objective) {
  return pipelines::make_sampler(recipe.sample.sampling, objective,
                                 size_shift_of(recipe.model, objective));
}

pipelines::PartialSampler partial_sampler_of(const ModelRecipe& recipe,
                                             const diffusion::Objective& objective,
                                             double strength) {
  return pipelines::make_partial_sampler(recipe.sample.sampling, objective,
                                         size_shift_of(recipe.model, objective), strength);
}

}  // namespace kinora::inference
