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
#include "kinora/models/families.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/text_encoder_config.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/prompts/caption_cleaning.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

/// Captions that are encoded at once.
constexpr size_t kAtOnce = 32;

/// kConfig where tokenizer, encoder and denoiser do not belong together. Reads no weights.
void check_fit(const tokenizers::Tokenizer& tokenizer, const fs::path& encoder_config,
               const models::ModelConfig& model) {
  const pipelines::TextEncoderConfig config = pipelines::parse_text_encoder_config(
      io::read_text(encoder_config, pipelines::kMaxConfigBytes), encoder_config.string());
  const auto* const t5 = std::get_if<models::T5Config>(&config);
  KINORA_CHECK(t5 != nullptr, kConfig, "[sample] the text encoder of ", encoder_config,
               " is a CLIP, but ", models::name_of(model),
               " reads T5's states. Hint: take both from one pipeline");
  KINORA_CHECK(t5->d_model == model.text_channels, kConfig, "[sample] the text encoder of ",
               encoder_config, " makes states of ", t5->d_model,
               " channels, but the transformer takes ", model.text_channels,
               " (caption_channels). Hint: take both from one pipeline");
  pipelines::check_vocabulary(tokenizer, "the text encoder of " + encoder_config.string(),
                              t5->vocab_size);
}

/// A text as numbers. What stands behind the first `attended` is padding, which has states too.
struct NumberedText {
  std::vector<int64_t> ids;
  int64_t attended = 0;
};

/// Texts that differ, as numbers.
std::vector<NumberedText> numbered(const tokenizers::Tokenizer& tokenizer,
                                   const std::vector<std::string>& texts, int64_t max_length,
                                   const CaptionOptions& options) {
  std::vector<NumberedText> all;
  for (const std::string& text : texts) {
    tokenizers::Tokens tokens = tokenizer.encode(prompts::preprocess_caption(text, options.cleans),
                                                 {.max_length = max_length});
    if (options.says && tokens.num_cut > 0) {
      log_warn("[sample] a caption is longer than ", max_length, " tokens; the last ",
               tokens.num_cut, " are left out: ", quote(tokens.cut));
    }
    all.push_back(
        {.ids = {tokens.ids.begin(), tokens.ids.end()}, .attended = std::ssize(tokens.ids)});
  }
  return all;
}

/// Padding behind the first text, up to the longest of the others.
void pad_first(std::vector<NumberedText>& texts, const tokenizers::Tokenizer& tokenizer) {
  const std::optional<int64_t> pad = tokenizer.pad_id();
  KINORA_CHECK(pad.has_value(), kConfig, "[sample] the tokenizer must have a padding token");
  const auto longest =
      std::ranges::max(texts, {}, [](const NumberedText& text) { return text.ids.size(); });
  std::vector<int64_t>& ids = texts.front().ids;
  ids.resize(std::max(ids.size(), longest.ids.size()), *pad);
}

/// The states of each text, with zeros up to `shape`.
std::vector<data::Text> encoded(models::TextEncoder& encoder,
                                const std::vector<NumberedText>& texts,
                                const data::TextShape& shape) {
  const at::NoGradGuard no_grad;
  std::vector<data::Text> all;
  for (size_t first = 0; first < texts.size(); first += kAtOnce) {
    models::TextTokens tokens;
    for (size_t i = first; i < std::min(texts.size(), first + kAtOnce); ++i) {
      const std::vector<int64_t>& ids = texts[i].ids;
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
      tokens.lengths.push_back(std::ssize(ids));
      tokens.attended.push_back(texts[i].attended);
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

namespace {

/// `caption` with what Open-Sora appends.
std::string with_its_scores(const std::string& caption, const pipelines::PipelineText& its,
                            const prompts::OpenSoraScores& given) {
  if (!its.scores) {
    return caption;
  }
  prompts::OpenSoraScores scores = given;
  if (!scores.aesthetic) {
    scores.aesthetic = its.scores->aesthetic;
  }
  return prompts::with_scores(caption, scores);
}

}  // namespace

Prompts prompts_of_pipeline(const pipelines::Pipeline& pipeline,
                            const std::vector<std::string>& captions, const ModelRecipe& recipe,
                            const CaptionOptions& options) {
  KINORA_CHECK(!captions.empty(), kConfig, "[sample] there must be at least one caption");
  const pipelines::PipelineText& its = pipeline.text.value();
  const fs::path tokenizer_folder = pipeline.part(its.tokenizer);
  const fs::path encoder_folder = pipeline.part(its.encoder);
  const fs::path encoder_config = pipeline.part(its.encoder / "config.json");
  const data::TextShape shape{.length = recipe.model.text_tokens,
                              .channels = recipe.model.text_channels,
                              .pooled_channels = 0};
  const auto tokenizer = tokenizers::Tokenizer::load(tokenizer_folder);
  check_fit(tokenizer, encoder_config, recipe.model);
  std::vector<std::string> texts = {options.negative};  // each once
  std::unordered_map<std::string, size_t> number;
  if (!its.cuts_negative && !its.scores) {
    number.emplace(options.negative, 0);
  }
  for (const std::string& caption : captions) {
    if (number.emplace(caption, texts.size()).second) {
      texts.push_back(with_its_scores(caption, its, options.scores));
    }
  }
  if (options.says) {
    log_info("[sample] captions are ", options.cleans ? "cleaned" : "made lower case",
             " and numbered by ", tokenizer_folder, ", at most ", shape.length, " tokens");
    if (its.scores) {
      log_info("[sample] encoded: ", quote(texts[1]));
    }
    log_info("[sample] text encoder ", encoder_folder, ", released before the transformer is read");
  }
  std::vector<NumberedText> numbers = numbered(tokenizer, texts, shape.length, options);
  if (its.cuts_negative) {
    pad_first(numbers, tokenizer);
  }
  const std::unique_ptr<models::TextEncoder> encoder = pipelines::open_text_encoder(
      encoder_folder, {.device = options.device, .type = compute_type(recipe.precision)});
  std::vector<data::Text> states = encoded(*encoder, numbers, shape);
  // Without a negative caption the model's own null embedding, where it learned one.
  const bool takes_null = its.has_learned_null && options.negative.empty();
  Prompts prompts{.shape = shape,
                  .all = {},
                  .negative = takes_null ? std::nullopt : std::optional(states.front()),
                  .cuts_negative = its.cuts_negative};
  for (const std::string& caption : captions) {
    prompts.all.push_back({.caption = caption, .text = states[number.at(caption)], .label = {}});
  }
  prompts.origin = encoder_folder.string() + (options.cleans ? ", cleaned" : ", lower case") +
                   ", negative " + quote(options.negative);
  return prompts;
}

}  // namespace kinora::inference
