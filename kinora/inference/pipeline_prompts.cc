#include "kinora/inference/pipeline_prompts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/data/layout.h"
#include "kinora/inference/fitting_text_encoder.h"
#include "kinora/inference/learned_embeddings.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/pipelines/image_encoder_file.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/prompts/caption_cleaning.h"
#include "kinora/tokenizers/tokenizer.h"
#include "kinora/tokenizers/tokenizer_files.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

/// Captions that are encoded at once.
constexpr size_t kAtOnce = 32;

/// Whether they are taken as they are written.
bool keeps_captions(const models::ModelConfig& model) {
  const models::Family& family = models::family_of(model);
  return family.keeps_captions || family.fills_captions || models::pads_captions(model);
}

/// kConfig where tokenizer, encoder and denoiser do not belong together. Reads no weights. Returns
/// how many tokens the encoder knows.
int64_t check_fit(const tokenizers::Tokenizer& tokenizer, const fs::path& path,
                  const models::ModelConfig& model) {
  const std::unique_ptr<models::TextEncoder> encoder = pipelines::described_text_encoder(path);
  const bool is_unet = models::pads_captions(model) && models::family_of(model).conditions.micro;
  const bool is_of_bert = is_unet && encoder->kind() == "BERT";  // latent diffusion's
  const std::string reads = is_of_bert ? "BERT"
                            : is_unet  ? "CLIP"
                            : models::pads_captions(model) && model.pooled_channels > 0
                                ? "T5 and CLIP"
                            : models::shape_of(model).reads_frame_in_text ? "Llava and CLIP"
                            : models::family_of(model).keeps_captions     ? "Llama and CLIP"
                                                                          : "T5";
  KINORA_CHECK(encoder->kind() == reads, kConfig, "[sample] the text encoder of ", path, " is a ",
               encoder->kind(), ", but ", models::name_of(model), " reads ", reads,
               "'s states. Hint: take both from one pipeline");
  KINORA_CHECK(encoder->width() == model.text_channels, kConfig, "[sample] the text encoder of ",
               path, " makes states of ", encoder->width(), " channels, but ",
               models::name_of(model), " takes ", model.text_channels,
               is_unet ? " (cross_attention_dim)" : " (caption_channels)",
               ". Hint: take both from one pipeline");
  KINORA_CHECK(model.pooled_channels == 0 || encoder->pooled_width() == model.pooled_channels,
               kConfig, "[sample] the text encoder of ", path, " makes pooled vectors of ",
               encoder->pooled_width(), " numbers, but ", models::name_of(model), " takes ",
               model.pooled_channels, ". Hint: take both from one pipeline");
  KINORA_CHECK(!is_unet || *encoder->piece() >= model.text_tokens, kConfig,
               "[sample] the text encoder of ", path, " reads ", *encoder->piece(),
               " tokens, but captions have ", model.text_tokens,
               ". Hint: take both from one pipeline");
  pipelines::check_vocabulary(tokenizer, "the text encoder of " + path.string(),
                              encoder->vocab_size());
  return encoder->vocab_size();
}

/// What is done to captions, in words.
std::string cleaning_of(const models::ModelConfig& model, const CaptionOptions& options) {
  if (keeps_captions(model)) {
    return "as written";
  }
  if (models::family_of(model).tidies_captions) {
    return options.cleans ? "tidied" : "as written";
  }
  return options.cleans ? "cleaned" : "lower case";
}

std::string cleaned(const std::string& text, const models::ModelConfig& model,
                    const CaptionOptions& options) {
  if (keeps_captions(model)) {
    return text;
  }
  if (models::family_of(model).tidies_captions) {
    return options.cleans ? prompts::tidied_caption(text) : text;
  }
  return prompts::preprocess_caption(text, options.cleans);
}

/// What is left of a caption's pieces when they are cleaned.
std::vector<prompts::WeightedText> cleaned_pieces(const std::string& text,
                                                  const models::ModelConfig& model,
                                                  const CaptionOptions& options) {
  std::vector<prompts::WeightedText> pieces;
  for (const prompts::WeightedText& piece :
       prompts::parse_weights(text, syntax_of(options.weights))) {
    std::string clean = cleaned(piece.text, model, options);
    if (!clean.empty()) {
      pieces.push_back({.text = std::move(clean), .weight = piece.weight});
    }
  }
  return pieces;
}

/// "x1.3[_red _circle]" of a piece of weight 1.3.
void say_pieces(const tokenizers::Tokenizer& tokenizer, const WeightedTokens& text,
                std::ostream& out) {
  auto piece = text.pieces.begin();
  for (int64_t i = 0; i < std::ssize(text.ids); ++i) {
    while (piece != text.pieces.end() && (piece->end <= i || piece->begin == piece->end)) {
      ++piece;
    }
    const bool inside = piece != text.pieces.end() && piece->begin <= i && piece->weight != 1.0;
    out << (i == 0 ? "" : " ");
    if (inside && piece->begin == i) {
      out << 'x' << piece->weight << '[';
    }
    out << tokenizer.token_of(text.ids[static_cast<size_t>(i)]).value_or("?");
    if (inside && piece->end == i + 1) {
      out << ']';
    }
  }
}

/// What is really encoded of a text.
void say_encoded(const tokenizers::Tokenizer& tokenizer, const std::string& given,
                 const std::vector<prompts::WeightedText>& pieces, const WeightedTokens& text,
                 int64_t max_length) {
  std::ostringstream clean;
  for (const prompts::WeightedText& piece : pieces) {
    clean << (clean.tellp() == 0 ? "" : " ") << piece.text;
  }
  std::ostringstream tokens;
  say_pieces(tokenizer, text, tokens);
  log_info("[sample] text ", quote(given), " is encoded as ", quote(clean.str()), ", ",
           text.ids.size(), " of ", max_length, " tokens, ", text.num_cut,
           " cut off: ", tokens.str());
}

/// A caption's pieces in what captions of the encoder stand in; null: nothing.
std::vector<prompts::WeightedText> framed(std::vector<prompts::WeightedText> pieces,
                                          const models::CaptionFrame* frame) {
  if (frame == nullptr) {
    return pieces;
  }
  if (pieces.empty()) {
    pieces.emplace_back();
  }
  pieces.front().text.insert(0, frame->before);
  pieces.back().text += frame->behind;
  return pieces;
}

/// Texts that differ, as numbers.
std::vector<WeightedTokens> tokens_of(const tokenizers::Tokenizer& tokenizer,
                                      const std::vector<std::string>& texts,
                                      const models::ModelConfig& model, int64_t max_length,
                                      const models::CaptionFrame* frame,
                                      const CaptionOptions& options) {
  std::vector<WeightedTokens> all;
  for (const std::string& text : texts) {
    const std::vector<prompts::WeightedText> pieces =
        framed(cleaned_pieces(text, model, options), frame);
    all.push_back(weighted_tokens(tokenizer, pieces, max_length));
    const WeightedTokens& tokens = all.back();
    if (options.says && options.verbose) {
      say_encoded(tokenizer, text, pieces, tokens, max_length);
    }
    if (options.says && tokens.num_cut > 0) {
      log_warn("[sample] a caption is longer than ", max_length, " tokens; the last ",
               tokens.num_cut, " are left out: ", quote(tokens.cut));
    }
  }
  return all;
}

int64_t pad_id(const tokenizers::Tokenizer& tokenizer) {
  const std::optional<int64_t> pad = tokenizer.pad_id();
  KINORA_CHECK(pad.has_value(), kConfig, "[sample] the tokenizer must have a padding token");
  return *pad;
}

/// Padding behind every text, which is read as the rest.
void pad_all(std::vector<WeightedTokens>& texts, const tokenizers::Tokenizer& tokenizer,
             int64_t length) {
  for (WeightedTokens& text : texts) {
    text.ids.resize(static_cast<size_t>(length), pad_id(tokenizer));
  }
}

/// Behind every text the tokens of the CLIPs beside the main encoder.
void add_beside(std::vector<WeightedTokens>& numbers, const std::vector<std::string>& texts,
                const std::vector<data::TokenizerBeside>& beside,
                const models::ModelConfig& model) {
  for (size_t i = 0; i < numbers.size() && !beside.empty(); ++i) {
    KINORA_CHECK(!numbers[i].is_weighted(), kConfig, "[sample] captions of ",
                 models::name_of(model),
                 " cannot have weights, since its text encoders are of two kinds");
    data::add_tokens_beside(beside, texts[i], numbers[i].ids);
  }
}

/// Padding behind the first text, up to the longest of the others.
void pad_first(std::vector<WeightedTokens>& texts, const tokenizers::Tokenizer& tokenizer) {
  WeightedTokens& text = texts.front();
  KINORA_CHECK(!text.is_weighted(), kConfig,
               "[sample] this model's negative caption cannot have weights");
  const auto longest =
      std::ranges::max(texts, {}, [](const WeightedTokens& each) { return each.ids.size(); });
  text.attended = std::ssize(text.ids);
  text.ids.resize(std::max(text.ids.size(), longest.ids.size()), pad_id(tokenizer));
}

/// States [length, C] as a text, with zeros up to `shape`.
data::Text text_of(const float* states, int64_t length, const data::TextShape& shape) {
  data::Text text{.tokens = std::vector<float>(static_cast<size_t>(shape.length * shape.channels)),
                  .length = length,
                  .pooled = {}};
  std::copy_n(states, length * shape.channels, text.tokens.begin());
  return text;
}

/// The states of each text.
std::vector<data::Text> encoded(models::TextEncoder& encoder,
                                const std::vector<WeightedTokens>& texts,
                                const data::TextShape& shape,
                                const WeightedStatesOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<data::Text> all;
  for (size_t first = 0; first < texts.size(); first += kAtOnce) {
    models::TextTokens tokens;
    std::vector<int64_t> attended;
    for (size_t i = first; i < std::min(texts.size(), first + kAtOnce); ++i) {
      const std::vector<int64_t>& ids = texts[i].ids;
      tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
      tokens.lengths.push_back(std::ssize(ids));
      attended.push_back(texts[i].attended > 0 ? texts[i].attended : std::ssize(ids));
    }
    if (attended != tokens.lengths) {
      tokens.attended = std::move(attended);
    }
    const models::TextStates out = encoder.encode(tokens);
    const at::Tensor states = out.states.cpu().contiguous();
    const float* row = states.const_data_ptr<float>();
    const at::Tensor pooled =
        shape.pooled_channels > 0 ? out.pooled.cpu().contiguous() : at::Tensor();
    for (int64_t i = 0; i < std::ssize(out.lengths); ++i) {
      const int64_t length = out.lengths[static_cast<size_t>(i)];
      all.push_back(text_of(row, length, shape));
      row += length * shape.channels;
      if (pooled.defined()) {
        const float* const vector = pooled.const_data_ptr<float>() + i * shape.pooled_channels;
        all.back().pooled.assign(vector, vector + shape.pooled_channels);
      }
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].is_weighted()) {  // its vector is that of the text without weights
      const at::Tensor states = weighted_states(encoder, texts[i], options).contiguous();
      all[i].tokens = text_of(states.const_data_ptr<float>(), states.size(0), shape).tokens;
      all[i].length = states.size(0);
    }
  }
  return all;
}

/// encoded() with each of options.pictures, or once where the encoder reads none; the first text,
/// the negative one, with a black picture. folder: where the encoder lies.
std::vector<std::vector<data::Text>> encoded_with_pictures(models::TextEncoder& encoder,
                                                           const fs::path& folder,
                                                           const std::vector<WeightedTokens>& texts,
                                                           const data::TextShape& shape,
                                                           const WeightedStatesOptions& weights,
                                                           const CaptionOptions& options) {
  const int64_t side = encoder.picture_side();
  if (side == 0) {
    return {encoded(encoder, texts, shape, weights)};
  }
  const at::NoGradGuard no_grad;
  const pipelines::ImagePreprocessing how = pipelines::image_preprocessing_of(folder, side);
  const auto show = [&](const io::Image& picture) {
    encoder.show(pipelines::preprocessed(picture, how).to(options.device));
  };
  io::Image black;
  io::set_size(black, side, side);
  std::ranges::fill(black.pixels, uint8_t{0});
  show(black);
  const data::Text negative = encoded(encoder, {texts.front()}, shape, weights).front();
  std::vector<std::vector<data::Text>> all;
  for (const io::Image& picture : options.pictures) {
    show(picture);
    all.push_back(encoded(encoder, texts, shape, weights));
    all.back().front() = negative;
  }
  return all;
}

std::vector<LearnedEmbedding> learned_of(const std::vector<std::string>& paths,
                                         const models::ModelConfig& model) {
  KINORA_CHECK(paths.empty() || models::pads_captions(model), kConfig,
               "[sample] --embedding is of models that read CLIP's states (Stable Diffusion), not ",
               models::name_of(model));
  std::vector<LearnedEmbedding> learned;
  for (const std::string& path : paths) {
    learned.push_back(read_embedding(path));
    const int64_t channels = learned.back().values.size(0);
    KINORA_CHECK(channels == model.text_channels, kConfig, "[sample] the embedding of ", path,
                 " has ", channels, " numbers, and the text encoder's have ", model.text_channels,
                 ". Hint: it is of another model");
  }
  return learned;
}

/// The tokenizer, which has the learned tokens from `first_id` on.
tokenizers::Tokenizer with_tokens(const fs::path& folder,
                                  const std::vector<LearnedEmbedding>& learned, int64_t first_id) {
  auto files = tokenizers::TokenizerFiles::read(folder);
  for (const LearnedEmbedding& each : learned) {
    files.add_token(each.token, first_id++);
  }
  return tokenizers::Tokenizer(files);
}

void add_to(models::TextEncoder& encoder, const std::vector<LearnedEmbedding>& learned) {
  if (learned.empty()) {
    return;
  }
  std::vector<at::Tensor> rows;
  for (const LearnedEmbedding& each : learned) {
    rows.push_back(each.values);
  }
  auto* const clip = dynamic_cast<models::ClipTextEncoder*>(&encoder);
  KINORA_CHECK(clip != nullptr, kConfig,
               "[sample] --embedding is of one CLIP, and the pipeline has two, or another encoder");
  clip->add_tokens(at::stack(rows));
}

/// What tells it from others, for who draws again.
std::string checksum_of(const LearnedEmbedding& embedding) {
  const auto* values = embedding.values.const_data_ptr<float>();
  return std::to_string(io::checksum_value(
      std::as_bytes(std::span(values, static_cast<size_t>(embedding.values.numel())))));
}

/// `caption` with what Open-Sora appends.
std::string with_its_scores(const std::string& caption, const pipelines::PipelineText& its,
                            const prompts::OpenSoraScores& given, double fps) {
  if (!its.scores) {
    return caption;
  }
  prompts::OpenSoraScores scores = given;
  if (!scores.aesthetic) {
    scores.aesthetic = its.scores->aesthetic;
  }
  if (!scores.motion) {
    scores.motion = its.scores->motion;
  }
  scores.fps = fps;
  return prompts::with_scores(caption, scores, its.wording);
}

/// The same of layouts, which the file of a model of latent diffusion reads.
Prompts prompts_of_boxes(const pipelines::Pipeline& pipeline,
                         const std::vector<std::string>& captions, const ModelRecipe& recipe,
                         const CaptionOptions& options) {
  const pipelines::PipelineText& its = *pipeline.text;
  KINORA_CHECK(options.embeddings.empty() && options.adapters.empty() &&
                   options.weights == PromptWeights::kOff,
               kConfig, "[sample] layouts have no weights, embeddings or adapters of words");
  const fs::path encoder_file = pipeline.part(its.encoder);
  const data::TextShape shape{.length = recipe.model.text_tokens,
                              .channels = recipe.model.text_channels,
                              .pooled_channels = 0};
  data::BoxTokens rules{.classes = {},
                        .vocabulary = pipelines::described_text_encoder(encoder_file)->vocab_size(),
                        .places = shape.length};
  if (!its.tokenizer.empty()) {
    rules.classes = caption_lines(pipeline.part(its.tokenizer));
  }
  if (options.says) {
    log_info(
        "[sample] layouts are read as ", shape.length, " tokens, objects of ",
        rules.classes.empty() ? "numbered classes" : "the classes of " + its.tokenizer.string());
  }
  std::vector<WeightedTokens> numbers;  // each once
  std::unordered_map<std::string, size_t> number;
  const auto add = [&](const std::string& text) {
    if (number.emplace(text, numbers.size()).second) {
      const data::Layout layout = text.empty() ? data::Layout{} : data::parse_layout(text);
      numbers.emplace_back().ids = data::box_tokens(layout, rules);
    }
  };
  add(options.negative);
  std::ranges::for_each(captions, add);
  const auto encoder =
      open_fitting_text_encoder(encoder_file, {.device = options.device,
                                               .type = compute_type(recipe.precision),
                                               .memory_gib = options.memory_gib,
                                               .says = options.says});
  const std::vector<data::Text> states = encoded(*encoder, numbers, shape, {});
  Prompts prompts{.shape = shape,
                  .all = {},
                  .negative = states.front(),
                  .origin = encoder_file.string() + ", negative " + quote(options.negative)};
  for (const std::string& caption : captions) {
    prompts.all.push_back({.caption = caption, .text = states[number.at(caption)], .label = {}});
  }
  return prompts;
}

}  // namespace

Prompts prompts_of_pipeline(const pipelines::Pipeline& pipeline,
                            const std::vector<std::string>& captions, const ModelRecipe& recipe,
                            const CaptionOptions& options) {
  KINORA_CHECK(!captions.empty(), kConfig, "[sample] there must be at least one caption");
  const pipelines::PipelineText& its = pipeline.text.value();
  if (its.reads_boxes) {
    return prompts_of_boxes(pipeline, captions, recipe, options);
  }
  const fs::path tokenizer_folder = pipeline.part(its.tokenizer);
  const fs::path encoder_folder = pipeline.part(its.encoder);
  const data::TextShape shape{.length = recipe.model.text_tokens,
                              .channels = recipe.model.text_channels,
                              .pooled_channels = recipe.model.pooled_channels};
  const bool has_pictures = !options.pictures.empty();
  KINORA_CHECK(has_pictures == models::shape_of(recipe.model).reads_frame_in_text, kConfig,
               "[sample] captions of ", models::name_of(recipe.model),
               has_pictures ? " are read without pictures"
                            : " are read with the first frame. Hint: --image FILE");
  const std::vector<LearnedEmbedding> learned = learned_of(options.embeddings, recipe.model);
  const std::vector<checkpoint::WeightedAdapter> adapters =
      pipelines::read_text_adapters(options.adapters, encoder_folder);
  auto tokenizer = tokenizers::Tokenizer::load(tokenizer_folder);
  const int64_t vocabulary = check_fit(tokenizer, encoder_folder, recipe.model);
  if (!learned.empty()) {
    tokenizer = with_tokens(tokenizer_folder, learned, vocabulary);
  }
  std::vector<std::string> texts = {options.negative};  // each once
  std::unordered_map<std::string, size_t> number;
  if (!its.cuts_negative && !its.scores && !has_pictures) {
    number.emplace(options.negative, 0);
  }
  for (const std::string& caption : captions) {
    if (number.emplace(caption, texts.size()).second) {
      texts.push_back(with_its_scores(caption, its, options.scores, clip_fps(recipe.data)));
    }
  }
  if (options.says) {
    log_info("[sample] captions, ", cleaning_of(recipe.model, options), ", are numbered by ",
             tokenizer_folder, ", at most ", shape.length, " tokens");
    if (its.scores) {
      log_info("[sample] encoded: ", quote(texts[1]));
    }
    log_info("[sample] text encoder ", encoder_folder, ", released before what denoises is read");
    for (const checkpoint::WeightedAdapter& each : adapters) {
      log_info("[lora] adapter ", each.adapter.origin, " merged into the text encoder with weight ",
               each.weight);
    }
  }
  const std::vector<data::TokenizerBeside> beside = pipelines::tokenizers_beside(encoder_folder);
  const auto described = pipelines::described_text_encoder(encoder_folder);
  const int64_t most_tokens = shape.length - described->beside().states;
  std::vector<WeightedTokens> numbers =
      tokens_of(tokenizer, texts, recipe.model, most_tokens, described->frame(), options);
  if (its.cuts_negative) {
    pad_first(numbers, tokenizer);
  }
  if (models::pads_captions(recipe.model)) {
    pad_all(numbers, tokenizer, most_tokens);
  }
  add_beside(numbers, texts, beside, recipe.model);
  const std::unique_ptr<models::TextEncoder> encoder =
      open_fitting_text_encoder(encoder_folder, {.device = options.device,
                                                 .type = compute_type(recipe.precision),
                                                 .memory_gib = options.memory_gib,
                                                 .says = options.says,
                                                 .adapters = adapters});
  add_to(*encoder, learned);
  if (models::fills_captions(recipe.model)) {
    encoder->set_fill({.length = shape.length, .id = pad_id(tokenizer)});
  }
  const std::vector<std::vector<data::Text>> states =
      encoded_with_pictures(*encoder, encoder_folder / "text_encoder", numbers, shape,
                            {.weights = options.weights,
                             .empty = tokenizer.encode("").ids,
                             .pad_id = tokenizer.pad_id().value_or(0),
                             .max_length = shape.length},
                            options);
  // Without a negative caption the model's own null embedding, where it learned one.
  const bool takes_null = its.has_own_null && options.negative.empty();
  Prompts prompts{.shape = shape,
                  .all = {},
                  .negative = takes_null ? std::nullopt : std::optional(states.front().front()),
                  .cuts_negative = its.cuts_negative};
  for (size_t i = 0; i < std::lcm(captions.size(), states.size()); ++i) {
    const std::string& caption = captions[i % captions.size()];
    prompts.all.push_back(
        {.caption = caption, .text = states[i % states.size()][number.at(caption)], .label = {}});
  }
  prompts.origin = encoder_folder.string() + ", " + cleaning_of(recipe.model, options) +
                   ", negative " + quote(options.negative) +
                   (options.weights == PromptWeights::kOff     ? ""
                    : options.weights == PromptWeights::kA1111 ? ", weights of a1111"
                                                               : ", weights of compel");
  for (const LearnedEmbedding& each : learned) {
    prompts.origin += ", " + each.token + " " + checksum_of(each);
  }
  for (const std::string& adapter : options.adapters) {
    prompts.origin += adapters.empty() ? "" : ", updates of " + adapter;
  }
  return prompts;
}

}  // namespace kinora::inference
