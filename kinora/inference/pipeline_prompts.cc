#include "kinora/inference/pipeline_prompts.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <unordered_map>
#include <utility>
#include <variant>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/inference/setup.h"
#include "kinora/io/file.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/text_encoder_config.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/prompts/caption_cleaning.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

/// Captions that are encoded at once.
constexpr size_t kAtOnce = 32;

/// What config.json of the text encoder says.
struct EncoderSize {
  int64_t width;
  int64_t vocab_size;
};

EncoderSize size_of(const models::T5Config& config) {
  return {config.d_model, config.vocab_size};
}
EncoderSize size_of(const models::ClipTextConfig& config) {
  return {config.hidden_size, config.vocab_size};
}

/// kConfig where tokenizer, encoder and denoiser do not belong together.
void check_fit(const tokenizers::Tokenizer& tokenizer, const fs::path& encoder_config,
               const models::ModelConfig& model) {
  const pipelines::TextEncoderConfig config = pipelines::parse_text_encoder_config(
      io::read_text(encoder_config, pipelines::kMaxConfigBytes), encoder_config.string());
  const EncoderSize size = std::visit([](const auto& its) { return size_of(its); }, config);
  KINORA_CHECK(size.width == model.text_channels, kConfig, "[sample] the text encoder of ",
               encoder_config, " makes states of ", size.width,
               " channels, but the transformer takes ", model.text_channels,
               " (caption_channels). Hint: take both from one pipeline");
  KINORA_CHECK(tokenizer.vocab_size() <= size.vocab_size, kConfig,
               "[sample] the tokenizer has ids up to ", tokenizer.vocab_size() - 1,
               ", but the text encoder of ", encoder_config, " has a vocabulary of ",
               size.vocab_size, ". Hint: take both from one pipeline");
}

/// Texts that differ, as numbers.
std::vector<std::vector<int64_t>> tokens_of(const tokenizers::Tokenizer& tokenizer,
                                            const std::vector<std::string>& texts,
                                            int64_t max_length, const CaptionOptions& options) {
  std::vector<std::vector<int64_t>> all;
  for (const std::string& text : texts) {
    tokenizers::Tokens tokens = tokenizer.encode(prompts::preprocess_caption(text, options.cleans),
                                                 {.max_length = max_length});
    if (options.says && tokens.num_cut > 0) {
      log_warn("[sample] a caption is longer than ", max_length, " tokens; the last ",
               tokens.num_cut, " are left out: ", quote(tokens.cut));
    }
    all.push_back(std::move(tokens.ids));
  }
  return all;
}

/// The states of each text, with zeros up to `shape`.
std::vector<data::Text> encoded(models::TextEncoder& encoder,
                                const std::vector<std::vector<int64_t>>& texts,
                                const data::TextShape& shape) {
  const at::NoGradGuard no_grad;
  std::vector<data::Text> all;
  for (size_t first = 0; first < texts.size(); first += kAtOnce) {
    models::TextTokens tokens;
    for (size_t i = first; i < std::min(texts.size(), first + kAtOnce); ++i) {
      tokens.ids.insert(tokens.ids.end(), texts[i].begin(), texts[i].end());
      tokens.lengths.push_back(std::ssize(texts[i]));
    }
    const models::TextStates out = encoder.encode(tokens);
    const at::Tensor states = out.states.cpu().contiguous();
    const float* row = states.const_data_ptr<float>();
    for (const int64_t length : out.lengths) {
      data::Text text{
          .tokens = std::vector<float>(static_cast<size_t>(shape.length * shape.channels)),
          .length = length,
          .pooled = {}};
      std::copy_n(row, length * shape.channels, text.tokens.begin());
      row += length * shape.channels;
      all.push_back(std::move(text));
    }
  }
  return all;
}

}  // namespace

Prompts prompts_of_pipeline(const pipelines::TextPipeline& pipeline,
                            const std::vector<std::string>& captions, const ModelRecipe& recipe,
                            const CaptionOptions& options) {
  KINORA_CHECK(!captions.empty(), kConfig, "[sample] there must be at least one caption");
  const fs::path tokenizer_folder = pipeline.part("tokenizer");
  const fs::path encoder_folder = pipeline.part("text_encoder");
  const fs::path encoder_config = pipeline.part("text_encoder/config.json");
  const data::TextShape shape{.length = recipe.model.text_tokens,
                              .channels = recipe.model.text_channels,
                              .pooled_channels = 0};
  const auto tokenizer = tokenizers::Tokenizer::load(tokenizer_folder);
  check_fit(tokenizer, encoder_config, recipe.model);
  std::vector<std::string> texts = {options.negative};  // each once
  std::unordered_map<std::string, size_t> number = {{options.negative, 0}};
  for (const std::string& caption : captions) {
    if (number.emplace(caption, texts.size()).second) {
      texts.push_back(caption);
    }
  }
  if (options.says) {
    log_info("[sample] captions are ", options.cleans ? "cleaned" : "made lower case",
             " and numbered by ", tokenizer_folder, ", at most ", shape.length, " tokens");
    log_info("[sample] text encoder ", encoder_folder, ", released before the transformer is read");
  }
  const auto tokens = tokens_of(tokenizer, texts, shape.length, options);
  const std::unique_ptr<models::TextEncoder> encoder = pipelines::open_text_encoder(
      encoder_folder, {.device = options.device, .type = compute_type(recipe.precision)});
  std::vector<data::Text> states = encoded(*encoder, tokens, shape);
  Prompts prompts{.shape = shape, .all = {}, .negative = states.front()};
  for (const std::string& caption : captions) {
    prompts.all.push_back({.caption = caption, .text = states[number.at(caption)], .label = {}});
  }
  prompts.origin = encoder_folder.string() + (options.cleans ? ", cleaned" : ", lower case") +
                   ", negative " + quote(options.negative);
  return prompts;
}

}  // namespace kinora::inference
