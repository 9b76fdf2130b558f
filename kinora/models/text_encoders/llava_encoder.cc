#include "kinora/models/text_encoders/llava_encoder.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::models {
namespace {

constexpr double kLlavaStd = 0.02;
constexpr const char* kLanguageModel = "language_model";

/// How many tokens before the picture's the one stands that ends a header: the last header's ends
/// before the text's last token, unless the text was cut off.
constexpr int64_t kHeaderBeforePicture = 2;

void add_rows(std::vector<int64_t>& rows, int64_t begin, int64_t end, int64_t stride = 1) {
  for (int64_t row = begin; row < end; row += stride) {
    rows.push_back(row);
  }
}

}  // namespace

LlavaEncoder::LlavaEncoder(const LlavaConfig& config)
    : config_(config),
      vision_tower_(config.image),
      linear_1_(config.image.hidden_size, config.text.hidden_size, nn::Init::normal(kLlavaStd),
                config.projector_bias),
      linear_2_(config.text.hidden_size, config.text.hidden_size, nn::Init::normal(kLlavaStd),
                config.projector_bias),
      language_model_(config.text) {
  add_child("vision_tower", vision_tower_);
  add_child("multi_modal_projector.linear_1", linear_1_);
  add_child("multi_modal_projector.linear_2", linear_2_);
  add_child(kLanguageModel, language_model_);
  language_model_.set_block_hook([this](int64_t block, bool begins) { tell_block(block, begins); });
}

int64_t LlavaEncoder::num_places() const {
  const int64_t side = config_.image.image_size / config_.image.patch_size;
  return side * side;
}

TokensBeside LlavaEncoder::beside() const {
  const int64_t of_picture = ceil_div(num_places(), config_.stride);
  return {.tokens = 0, .states = of_picture - config_.tokens_before - config_.tokens_behind};
}

void LlavaEncoder::show(const at::Tensor& pixels) {
  const at::Tensor places = vision_tower_.states(pixels.unsqueeze(0))[0].narrow(0, 1, num_places());
  const at::Tensor hidden =
      activate(config_.projector_activation, linear_1_.forward(places.to(linear_1_.type())));
  picture_ = linear_2_.forward(hidden).to(at::kFloat);
}

TextStates LlavaEncoder::encode(const TextTokens& tokens, const TextLayer& layer) {
  KINORA_CHECK(picture_.defined(), kConfig,
               "[llava] texts are read with a picture, and none was shown");
  check(tokens, layer);
  const int64_t places = num_places();
  TextTokens all;                   // with as many tokens of the picture as it has places
  std::vector<int64_t> of_picture;  // rows of all
  std::vector<int64_t> read;
  TextStates result;
  auto text = tokens.ids.begin();
  for (size_t i = 0; i < tokens.lengths.size(); ++i) {
    const int64_t length = tokens.lengths[i];
    const auto end = text + length;
    const auto picture = std::find(text, end, config_.image_token_id);
    KINORA_CHECK(std::count(text, end, config_.image_token_id) == 1 &&
                     picture - text >= kHeaderBeforePicture &&
                     length > config_.tokens_before + config_.tokens_behind,
                 kShape, "[llava] text ", i, " must have one token ", config_.image_token_id,
                 " of a picture behind a header, and more than the ",
                 config_.tokens_before + config_.tokens_behind, " tokens that are left out, got ",
                 std::count(text, end, config_.image_token_id), " and ", length);
    const auto first = std::ssize(all.ids);
    all.ids.insert(all.ids.end(), text, picture);
    all.ids.insert(all.ids.end(), static_cast<size_t>(places), config_.image_token_id);
    all.ids.insert(all.ids.end(), picture + 1, end);
    all.lengths.push_back(length + places - 1);
    const int64_t begin = first + (picture - text);
    add_rows(of_picture, begin, begin + places);
    const auto rows = std::ssize(read);
    add_rows(read, begin, begin + places, config_.stride);
    const int64_t last = first + all.lengths.back();
    const bool is_whole = *(end - 2) == *(picture - kHeaderBeforePicture);
    const int64_t behind = is_whole ? last - 1 : last;
    add_rows(read, first + config_.tokens_before + places - 1, behind - config_.tokens_behind);
    add_rows(read, behind, last);
    result.lengths.push_back(std::ssize(read) - rows);
    text = end;
  }
  const auto on_device = [this](const std::vector<int64_t>& rows) {
    return at::tensor(rows, at::kLong).to(picture_.device());
  };
  const at::Tensor pictures = picture_.repeat({std::ssize(tokens.lengths), 1});
  const TextStates states =
      language_model_.encode_with(all, on_device(of_picture), pictures, layer);
  result.states = states.states.index_select(0, on_device(read));
  return result;
}

std::string LlavaEncoder::block_path(int64_t block) const {
  return std::string(kLanguageModel) + "." + language_model_.block_path(block);
}

std::vector<nn::NamedParameter> LlavaEncoder::vocabularies() {
  std::vector<nn::NamedParameter> all = language_model_.vocabularies();
  for (nn::NamedParameter& named : all) {
    named.path.insert(0, std::string(kLanguageModel) + ".");
  }
  return all;
}

}  // namespace kinora::models
