// kinora data encode CONFIG [key=value ...] --out FOLDER

#include <ATen/ops/full.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/kinora/caption_progress.h"
#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/ranks.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/stop_signal.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"
#include "kinora/data/data_config.h"
#include "kinora/data/latent_cache.h"
#include "kinora/device/device.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/encode.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/run_config.h"
#include "kinora/train/setup.h"

namespace kinora::apps {
namespace {

DType dtype_of(const std::string& name) {
  if (name == "fp32") {
    return DType::kF32;
  }
  return name == "fp16" ? DType::kF16 : DType::kBF16;
}

/// The recipe with what the options say in its place.
train::RunConfig config_of(const EncodeArguments& arguments) {
  auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  inference::AutoencoderOptions& autoencoder = config.autoencoder;
  if (!arguments.autoencoder.empty()) {
    autoencoder.path = arguments.autoencoder;
  }
  if (arguments.batch > 0) {
    autoencoder.micro_batch = arguments.batch;
  }
  if (arguments.memory_budget >= 0.0) {
    autoencoder.memory_gib = arguments.memory_budget;
  }
  if (dtype_of(arguments.dtype) == DType::kF32) {  // digits that bf16 does not compute
    autoencoder.precision = Precision::kFp32;
    config.text.precision = Precision::kFp32;
  }
  KINORA_CHECK(!autoencoder.path.empty(), kConfig,
               "[encode] an autoencoder is needed. Hint: --autoencoder PATH, or autoencoder.path "
               "in the recipe");
  return config;
}

/// The set as it is encoded: without texts, and with all of each sample's captions.
std::unique_ptr<data::Source> open_set(data::DataConfig& data) {
  data.text = data::TextKind::kNone;
  data.text_embeddings.clear();
  data.captions = {};
  return data::open_source(data);
}

/// False after a signal.
bool encode_latents(const EncodeArguments& arguments, const train::RunConfig& config,
                    const data::Source& source, const pipelines::LatentEncoder& encoder,
                    const comm::Group& group, const StopSignal& stop) {
  pipelines::EncodeOptions options{.out = arguments.out,
                                   .data = config.data,
                                   .autoencoder = train::autoencoder_key(config.autoencoder),
                                   .dtype = dtype_of(arguments.dtype),
                                   .std = !arguments.mean_only,
                                   .mirrored = arguments.mirrored,
                                   .block_seconds = arguments.save_every,
                                   .progress = {}};
  std::optional<Progress> progress;
  options.progress = [&progress](int64_t done, int64_t total, int64_t before) {
    if (!progress) {
      progress.emplace(total, "samples", before);
    }
    progress->update(done);
  };
  const pipelines::EncodeResult result = pipelines::encode(source, encoder, options, group, &stop);
  progress.reset();
  if (result.complete && group.rank() == 0) {
    log_info("[encode] ", arguments.out, " holds latents of ", counted(result.samples, "sample"),
             "; train on them with data.source=latents 'data.path=[", arguments.out, "]'");
    if (result.left_out > 0) {
      log_warn("[encode] left out ", counted(result.left_out, "sample"),
               " that could not be encoded; the cache's part-*.jsonl say why");
    }
  }
  return result.complete;
}

/// Whether it holds on any rank.
bool of_any_rank(bool own, const comm::Group& group, at::Device device) {
  const at::Tensor any = at::full({1}, own ? 1 : 0, at::kLong).to(device);
  group.all_reduce(any, comm::Reduction::kMax);
  return any.item<int64_t>() > 0;
}

/// Embeds the captions of the cache's samples, beside their latents.
void encode_texts(const EncodeArguments& arguments, const train::RunConfig& config,
                  data::CaptionLines lines, const data::CaptionTokens& tokens,
                  const comm::Group& group, at::Device device, const StopSignal& stop) {
  group.barrier();  // the first rank has written what is read here
  const data::LatentCache cache(arguments.out);
  const std::optional<std::vector<std::string>> captions = read_captions(
      cache, {.lines = lines, .threads = config.data.threads}, stop, group.rank() == 0);
  if (of_any_rank(!captions, group, device)) {
    return;
  }
  const inference::TextOptions& text = config.text;
  const auto frozen = inference::open_text_encoder(config, tokens, device);
  const std::filesystem::path tokenizer = text.tokenizer.empty()
                                              ? pipelines::find_tokenizer(text.encoder)
                                              : std::filesystem::path(text.tokenizer);
  std::string precision = at::toString(inference::compute_type(text.precision));
  if (text.weights != inference::TextWeights::kFull) {
    precision += text.weights == inference::TextWeights::kInt8 ? ", int8" : ", fp8";
  }
  const pipelines::CaptionEmbeddingResult result = embed_captions(
      *captions, *frozen->model, tokens,
      {.out = std::filesystem::path(arguments.out) / data::kCachedTextsFile,
       .dtype = dtype_of(arguments.dtype),
       .batch = text.micro_batch > 0 ? text.micro_batch : inference::TextOptions::kMicroBatch,
       .save_seconds = arguments.save_every,
       .metadata = text_metadata(text.encoder, tokenizer, precision, tokens.cleans),
       .ranks = group,
       .device = device},
      stop);
  if (result.complete && group.rank() == 0) {
    log_info("[encode] ", arguments.out, " holds texts of ",
             counted(std::ssize(*captions), "caption"), ", each of up to ", result.length,
             " tokens (", human_bytes(result.num_bytes), "); data.text=file reads them");
  }
}

void encode_on_rank(const EncodeArguments& arguments, train::RunConfig config,
                    const comm::Group& group, at::Device device) {
  device::configure_computation(config.train.threads, config.deterministic);
  const data::CaptionLines lines = config.data.captions.lines;
  const auto source = open_set(config.data);
  if (group.rank() == 0) {
    data::announce_unusable(*source);
    if (config.data.mask == data::MaskKind::kDrawn) {
      log_warn(
          "[encode] a cache of latents holds no masks that are drawn anew each time "
          "(data.mask=drawn), nor what they leave of pictures, which is encoded in each step; a "
          "model that fills in trains on the pictures, with autoencoder.path, or on masks of files "
          "(data.mask=true)");
    }
  }
  auto frozen = train::open_encoder(config.autoencoder, {&config.data, &config.image_data}, device);
  std::optional<data::CaptionTokens> tokens;
  if (!config.text.encoder.empty()) {  // which is to fit before hours of latents are computed
    tokens = inference::caption_tokens(config);
    config.model = inference::resolved_model(config, source->num_classes(),
                                             train::encoded_size(config.data, frozen->encoder));
    inference::check_text_encoder(config, *tokens);
  }
  const StopSignal stop;
  const bool is_complete = encode_latents(arguments, config, *source, frozen->encoder, group, stop);
  frozen.reset();
  if (is_complete && tokens) {
    encode_texts(arguments, config, lines, *tokens, group, device, stop);
  }
}

}  // namespace

int run(const EncodeArguments& arguments) {
  set_memory_hint("--memory-budget GIB, or a smaller --batch");
  const train::RunConfig config = config_of(arguments);
  io::check_can_write(arguments.out);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, config.train.device, AtStop::kSave);
  }
  // Ranks wait for the slowest at the end, once.
  const comm::GroupOptions options{.operation_timeout = std::chrono::hours(24)};
  on_rank(
      *world, config.train.device,
      [&](const comm::Group& group, at::Device device) {
        encode_on_rank(arguments, config, group, device);
      },
      options);
  return 0;
}

}  // namespace kinora::apps
