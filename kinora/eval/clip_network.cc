#include "kinora/eval/clip_network.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/data/caption_tokens.h"
#include "kinora/io/image.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::eval {
namespace {

constexpr size_t kPromptsAtOnce = 64;

/// uint8 [3, H, W] as an image.
io::Image image_of(const at::Tensor& pixels) {
  const at::Tensor rows = pixels.permute({1, 2, 0}).contiguous();  // [H, W, 3]
  io::Image image;
  io::set_size(image, rows.size(0), rows.size(1));
  std::memcpy(image.pixels.data(), rows.const_data_ptr(), image.pixels.size());
  return image;
}

at::Tensor normalised(const at::Tensor& vectors) {
  return vectors / vectors.norm(2, -1, /*keepdim=*/true);
}

}  // namespace

ClipNetwork::ClipNetwork(const std::filesystem::path& folder, at::Device device)
    : preprocessing_(pipelines::read_image_preprocessing(folder)),
      tokenizer_(tokenizers::Tokenizer::load(pipelines::find_tokenizer(folder))),
      images_(pipelines::open_image_encoder(folder, device)),
      text_(pipelines::open_text_encoder(folder, {.device = device})) {
  pipelines::check_vocabulary(tokenizer_, "the CLIP in " + folder.string(), text_->vocab_size());
  const int64_t size = images_->config().image_size;
  KINORA_CHECK(preprocessing_.crop == size, kConfig, "[clip] the image tower in ", folder.string(),
               " takes pictures of ", size, " pixels a side, but preprocessor_config.json makes ",
               preprocessing_.crop);
  name_ = "clip " + pipelines::text_encoder_fingerprint(folder);
}

at::Tensor ClipNetwork::prepare(const at::Tensor& sample) const {
  if (sample.dim() == 3) {
    return pipelines::preprocessed(image_of(sample), preprocessing_);
  }
  std::vector<at::Tensor> frames;
  for (int64_t i = 0; i < sample.size(1); ++i) {
    frames.push_back(pipelines::preprocessed(image_of(sample.select(1, i)), preprocessing_));
  }
  return at::stack(frames);  // [T, 3, S, S]
}

NetworkOutput ClipNetwork::forward(const at::Tensor& inputs) const {
  const at::NoGradGuard no_grad;
  const int64_t batch = inputs.size(0);
  const at::Tensor pictures = inputs.dim() == 5 ? inputs.flatten(0, 1) : inputs;
  return {.features = normalised(images_->forward(pictures)).reshape({batch, -1}), .logits = {}};
}

at::Tensor ClipNetwork::embed(const std::vector<std::string>& prompts) const {
  const at::NoGradGuard no_grad;
  const int64_t most =
      dynamic_cast<const models::ClipTextEncoder&>(*text_).config().max_position_embeddings;
  std::vector<at::Tensor> vectors;
  for (size_t first = 0; first < prompts.size(); first += kPromptsAtOnce) {
    models::TextTokens tokens;
    for (size_t i = first; i < std::min(first + kPromptsAtOnce, prompts.size()); ++i) {
      const tokenizers::Tokens own = tokenizer_.encode(prompts[i], {.max_length = most});
      if (own.num_cut > 0) {
        log_warn("[eval] a prompt is longer than CLIP's ", most, " tokens; the last ", own.num_cut,
                 " are left out: ", data::shortened(own.cut));
      }
      tokens.ids.insert(tokens.ids.end(), own.ids.begin(), own.ids.end());
      tokens.lengths.push_back(std::ssize(own.ids));
    }
    vectors.push_back(normalised(text_->encode(tokens).pooled).cpu());
  }
  return at::cat(vectors);
}

}  // namespace kinora::eval
