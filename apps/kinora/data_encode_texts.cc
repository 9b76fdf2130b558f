// kinora data encode-texts CONFIG [key=value ...] --text-encoder PATH --out FILE

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/kinora/caption_progress.h"
#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/stop_signal.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"
#include "kinora/data/data_config.h"
#include "kinora/device/device.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/train/run_config.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

/// What the recipe's model takes of texts.
struct WantedTexts {
  std::string model;
  bool pooled = false;   ///< a vector a caption, else tokens
  int64_t channels = 0;  ///< of either; 0: the recipe does not say
  int64_t tokens = 0;    ///< of the longest caption; 0: no limit
};

WantedTexts wanted_texts(const models::ModelConfig& model) {
  const models::FamilyConditions& conditions = models::family_of(model).conditions;
  KINORA_CHECK(model.takes_text(), kConfig, "[captions] the recipe's model, ",
               models::name_of(model), ", is not conditioned on texts. Hint: model.architecture");
  const models::ModelConfig published = models::published_values(model);
  const auto or_published = [](int64_t own, int64_t by_name) { return own > 0 ? own : by_name; };
  return {.model = models::name_of(model),
          .pooled = conditions.pooled,
          .channels = or_published(model.text_channels, published.text_channels),
          .tokens = conditions.pooled ? 0 : or_published(model.text_tokens, published.text_tokens)};
}

void check_width(const models::TextEncoder& encoder, const std::string& path,
                 const WantedTexts& wanted) {
  const int64_t width = wanted.pooled ? encoder.pooled_width() : encoder.width();
  KINORA_CHECK(width > 0, kConfig, "[captions] ", wanted.model, " takes a pooled vector, and ",
               path, " gives none. Hint: a CLIP");
  KINORA_CHECK(wanted.channels == 0 || wanted.channels == width, kConfig, "[captions] ", path,
               " gives vectors of ", width, " numbers, but model.text_channels is ",
               wanted.channels, ". Hint: set model.text_channels=", width,
               " in the recipe, or take its model's text encoder");
}

/// Nothing if a signal came.
std::optional<std::vector<std::string>> captions_of_data(data::DataConfig config,
                                                         const StopSignal& stop) {
  config.text = data::TextKind::kNone;  // the file that is to be made
  config.text_embeddings.clear();
  const data::CaptionLines lines = std::exchange(config.captions, {}).lines;
  const auto source = data::open_source(config);
  data::announce_unusable(*source);
  return read_captions(
      *source, {.lines = lines, .threads = config.threads, .max_bad = config.max_bad}, stop);
}

int64_t token_limit(const EncodeTextsArguments& arguments, const WantedTexts& wanted,
                    const tokenizers::Tokenizer& tokenizer, std::optional<int64_t> piece) {
  const int64_t at_once = std::min(
      models::kMostTokens, tokenizer.max_length().value_or(piece.value_or(models::kMostTokens)));
  const bool in_pieces = piece && !wanted.pooled;  // then texts may be longer, if asked for
  const int64_t most = wanted.tokens > 0 ? wanted.tokens : models::kMostTokens;
  const int64_t limit = in_pieces ? most : std::min(most, at_once);
  KINORA_CHECK(arguments.max_tokens <= limit, kConfig, "[captions] --max-tokens must be at most ",
               limit, ", of model.text_tokens and the tokenizer, got ", arguments.max_tokens);
  return arguments.max_tokens > 0 ? arguments.max_tokens : std::min(most, at_once);
}

std::optional<models::EightBit> eight_bits_of(const std::string& name) {
  if (name.empty()) {
    return {};
  }
  return name == "int8" ? models::EightBit::kInt8 : models::EightBit::kFp8;
}

}  // namespace

int run(const EncodeTextsArguments& arguments) {
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const WantedTexts wanted = wanted_texts(config.model);
  io::check_can_write(fs::absolute(arguments.out).parent_path());
  const fs::path tokenizer_path = arguments.tokenizer.empty()
                                      ? pipelines::find_tokenizer(arguments.text_encoder)
                                      : fs::path(arguments.tokenizer);
  const auto tokenizer =
      std::make_shared<const tokenizers::Tokenizer>(tokenizers::Tokenizer::load(tokenizer_path));
  device::configure_computation(config.train.threads, config.deterministic);
  const at::Device device = inference::choose_device(
      arguments.device == DeviceChoice::kAuto ? config.train.device : arguments.device);
  const at::ScalarType type = inference::compute_type(arguments.precision);
  const auto encoder = pipelines::open_text_encoder(
      arguments.text_encoder, {.device = device,
                               .type = type,
                               .eight_bits = eight_bits_of(arguments.eight_bits),
                               .streamed = arguments.streamed});
  check_width(*encoder, arguments.text_encoder, wanted);
  KINORA_CHECK(encoder->picture_side() == 0, kConfig, "[text] ", arguments.text_encoder,
               " reads a picture with each caption, and captions alone are encoded here");

  const StopSignal stop;
  const bool is_of_data = arguments.captions_file.empty();
  const std::optional<std::vector<std::string>> captions =
      is_of_data ? captions_of_data(config.data, stop)
                 : inference::caption_lines(arguments.captions_file);
  if (!captions) {
    return 0;
  }
  const models::CaptionFrame* const frame = encoder->frame();
  const data::CaptionTokens tokens{
      .tokenizer = tokenizer,
      .beside = pipelines::tokenizers_beside(arguments.text_encoder),
      .before = frame == nullptr ? "" : frame->before,
      .behind = frame == nullptr ? "" : frame->behind,
      .max_length =
          token_limit(arguments, wanted, *tokenizer, encoder->piece()) - encoder->num_states(0),
      .piece = encoder->piece(),
      .pads = models::pads_captions(config.model),
      .cleans = arguments.clean.value_or(inference::cleans_captions(config.model))};
  if (models::family_of(config.model).fills_captions) {
    encoder->set_fill({.length = tokens.max_length, .id = tokenizer->pad_id().value_or(0)});
  }
  const pipelines::CaptionEmbeddingOptions options{
      .out = arguments.out,
      .dtype = device::dtype_of(inference::compute_type(arguments.dtype)),
      .keyed = is_of_data,
      .batch = arguments.batch,
      .save_seconds = arguments.save_every,
      .metadata = text_metadata(
          arguments.text_encoder, tokenizer_path,
          at::toString(type) + (arguments.eight_bits.empty() ? "" : ", " + arguments.eight_bits),
          tokens.cleans)};
  const pipelines::CaptionEmbeddingResult result =
      embed_captions(*captions, *encoder, tokens, options, stop);
  if (result.complete) {
    log_info("[captions] ", arguments.out, " holds ", counted(std::ssize(*captions), "caption"),
             ", each of up to ", result.length, " tokens (", human_bytes(result.num_bytes),
             is_of_data ? "); train on them with data.text=file data.text_embeddings="
                        : "); draw them with kinora sample --text-embeddings ",
             arguments.out);
  }
  return 0;
}

}  // namespace kinora::apps
