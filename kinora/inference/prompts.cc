#include "kinora/inference/prompts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <algorithm>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/data/text_file.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/prompts/wildcards.h"

namespace kinora::inference {
namespace {

template <typename T>
void copy_row(const std::vector<T>& values, const at::Tensor& rows, int64_t row) {
  std::copy(values.begin(), values.end(),
            rows.mutable_data_ptr<T>() + row * static_cast<int64_t>(values.size()));
}

/// How many places of states are read: without those that are padding in all texts, where these are
/// tokens of the blocks and nobody reads padding.
int64_t places_read(const Prompts& prompts, const models::ModelConfig& model) {
  if (prompts.shape.is_ids() || !models::family_of(model).has_text_stream ||
      models::pads_captions(model)) {
    return prompts.shape.length;
  }
  int64_t longest = prompts.negative ? prompts.negative->length : 1;
  for (const Prompt& prompt : prompts.all) {
    longest = std::max(longest, prompt.text.length);
  }
  return longest;
}

/// The texts of samples first, ..., of the model's size, as the loader would give them.
data::Batch batch_of(const Prompts& prompts, const models::ModelConfig& model, int64_t first,
                     int64_t size) {
  const data::TextShape& shape = prompts.shape;
  data::Batch batch{.images = unseen_samples(model, size)};
  if (shape.is_ids()) {
    batch.tokens = at::empty({size, shape.length}, at::kLong);
  } else {
    batch.text = at::empty({size, shape.length, shape.channels});
  }
  batch.text_lengths = at::empty({size}, at::kLong);
  if (shape.pooled_channels > 0) {
    batch.pooled = at::empty({size, shape.pooled_channels});
  }
  for (int64_t i = 0; i < size; ++i) {
    const auto number = static_cast<size_t>(first + i) % prompts.all.size();
    const data::Text& text = prompts.all[number].text;
    if (shape.is_ids()) {
      copy_row(text.ids, batch.tokens, i);
    } else {
      copy_row(text.tokens, batch.text, i);
    }
    batch.text_lengths.mutable_data_ptr<int64_t>()[i] = text.length;
    if (batch.pooled.defined()) {
      copy_row(text.pooled, batch.pooled, i);
    }
  }
  if (batch.text.defined()) {
    batch.text = batch.text.narrow(1, 0, places_read(prompts, model));
  }
  return batch;
}

/// The negative text instead of every text of `conditions`.
diffusion::Conditions negative_of(const Prompts& prompts, const diffusion::Conditions& conditions) {
  const data::Text& text = *prompts.negative;
  const at::Tensor& texts = conditions.text;
  at::Tensor row = at::empty({1, prompts.shape.length, texts.size(2)});
  copy_row(text.tokens, row, 0);
  row = row.narrow(1, 0, texts.size(1));
  diffusion::Conditions negative;
  if (conditions.pooled.defined()) {
    at::Tensor vector = at::empty({1, conditions.pooled.size(1)});
    copy_row(text.pooled, vector, 0);
    negative.pooled = vector.to(texts.device()).expand_as(conditions.pooled);
  }
  take_null_score(conditions, negative);
  negative.text = row.to(texts.device()).expand_as(texts);
  negative.text_lengths = prompts.cuts_negative
                              ? conditions.text_lengths.clamp_max(text.length)
                              : at::full_like(conditions.text_lengths, text.length);
  return negative;
}

}  // namespace

std::vector<std::string> captions_of(const Request& request) {
  if (request.wildcards.empty()) {
    return request.captions;
  }
  prompts::Wildcards wildcards(request.wildcards);
  const size_t count =
      request.count > 0 ? static_cast<size_t>(request.count) : request.captions.size();
  std::vector<std::string> captions;
  for (size_t i = 0; i < count; ++i) {
    captions.push_back(
        wildcards.expanded(request.captions[i % request.captions.size()], request.seed, i));
  }
  return captions;
}

std::vector<std::string> caption_lines(const std::filesystem::path& path) {
  constexpr int64_t kMostBytes = int64_t{1} << 26;
  const std::string text = io::read_text(path, kMostBytes);
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) {
    if (!trim(line).empty()) {
      lines.emplace_back(trim(line));
    }
  }
  KINORA_CHECK(!lines.empty(), kConfig, "[sample] ", path.string(),
               " must hold at least one caption");
  return lines;
}

Prompts prompts_of_tokens(const std::vector<std::string>& captions,
                          const data::CaptionTokens& tokens) {
  KINORA_CHECK(!captions.empty(), kConfig, "[sample] there must be at least one caption");
  const int64_t padding = tokens.tokenizer->pad_id().value_or(0);
  Prompts prompts{.shape = {.length = tokens.max_length}, .all = {}};
  for (const std::string& caption : captions) {
    tokenizers::Tokens made = data::encode(tokens, caption);
    KINORA_CHECK(!made.ids.empty(), kConfig, "[sample] a caption must have a token in it, got ",
                 data::shortened(caption));
    if (made.num_cut > 0) {
      log_warn("[sample] a caption is longer than ", data::own_length(tokens), " tokens; the last ",
               made.num_cut, " are left out: ", data::shortened(made.cut));
    }
    Prompt prompt{.caption = caption, .text = {}, .label = {}};
    prompt.text.length = std::ssize(made.ids);
    prompt.text.ids = std::move(made.ids);
    prompt.text.ids.resize(static_cast<size_t>(tokens.max_length), padding);
    prompts.all.push_back(std::move(prompt));
  }
  return prompts;
}

Prompts prompts_of_captions(const std::vector<std::string>& captions, const ModelRecipe& recipe) {
  KINORA_CHECK(recipe.model.text_encoder.any(), kConfig,
               "[sample] captions need a text encoder, and the model has none of its own. Hint: "
               "text.encoder=FOLDER, which kinora sample takes by --set (the folder of a pipeline "
               "brings its own, where its model_index.json is there); or embed them as its texts "
               "were, and give --text-embeddings");
  const std::optional<data::CaptionTokens> tokens = caption_tokens(recipe);
  KINORA_CHECK(tokens.has_value(), kConfig,
               "[sample] the model's text encoder needs a tokenizer. Hint: text.tokenizer");
  return prompts_of_tokens(captions, *tokens);
}

Prompts prompts_of_file(const std::filesystem::path& path) {
  const data::TextFile file(path);
  Prompts prompts{.shape = file.shape(), .all = {}};
  for (int64_t number = 0; number < file.num_texts(); ++number) {
    Prompt prompt;
    file.read(number, prompt.text);
    prompts.all.push_back(std::move(prompt));
  }
  return prompts;
}

Prompts prompts_of_data(const data::Source& source, int64_t count) {
  KINORA_CHECK(source.text_shape().has_value(), kConfig,
               "[sample] the run's data has no texts. Hint: data.text");
  Prompts prompts{.shape = *source.text_shape(), .all = {}};
  data::Sample sample;
  sample.choice = data::FrameChoice{};  // one frame at most: only its text counts
  for (int64_t i = 0; i < source.size() && static_cast<int64_t>(prompts.all.size()) < count; ++i) {
    try {
      source.read(i, sample);
    } catch (const Error& error) {
      log_warn("[sample] its text is left out: ", error.what());
      continue;
    }
    const std::string& caption = sample.caption.empty()
                                     ? source.class_names()[static_cast<size_t>(sample.label)]
                                     : sample.caption;
    prompts.all.push_back({.caption = caption, .text = sample.text, .label = sample.label});
  }
  KINORA_CHECK(!prompts.all.empty(), kIo, "[sample] no sample of the run's data can be read");
  return prompts;
}

std::function<pipelines::DrawConditions(int64_t first, int64_t size)> conditions_of_prompts(
    Prompts prompts, const models::ModelConfig& model, double fps, at::Device device) {
  return [prompts = std::move(prompts), model, fps, device](int64_t first, int64_t size) {
    data::Batch batch = batch_of(prompts, model, first, size);
    if (model.frames > 1) {
      batch.fps = at::full({size}, fps, at::kFloat);
    }
    pipelines::DrawConditions result;
    result.conditions = to_device(conditions_of(batch, model), device);
    result.null = prompts.negative ? negative_of(prompts, result.conditions)
                                   : null_of(result.conditions, model.num_classes);
    return result;
  };
}

}  // namespace kinora::inference
