#include "kinora/train/null_caption.h"

#include <ATen/ops/tensor.h>

#include <memory>

#include "kinora/core/log.h"
#include "kinora/core/rounding.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/train/run.h"

namespace kinora::train {

void fill_null_caption(Run& run) {
  if (const at::Tensor tokens = run.trainable->model().null_tokens(); tokens.defined()) {
    const data::CaptionTokens words = inference::caption_tokens(run.config).value();
    const data::Text text = inference::prompts_of_tokens({""}, words).all.front().text;
    tokens.copy_(at::tensor(text.ids).narrow(0, 0, tokens.size(0)));
    return;
  }
  const at::Tensor null = run.trainable->model().null_caption();
  if (!null.defined()) {
    return;
  }
  const comm::Group& world = run.mesh.world();
  if (run.config.text.encoder.empty()) {
    if (run.writes() && !null.any().item<bool>()) {
      log_warn(
          "[train] captions that are dropped, and guidance, read zeros, since there is no "
          "text.encoder; published models of ",
          models::family_of(run.config.model).name,
          " read its states of an empty caption. Hint: give text.encoder, with cached texts "
          "too");
    }
    return;
  }
  data::CaptionTokens tokens = inference::caption_tokens(run.config).value();
  std::unique_ptr<inference::FrozenTextEncoder> opened;
  if (!run.text_encoder) {  // texts come from a file
    opened = inference::open_text_encoder(run.config, tokens, run.device);
  }
  const pipelines::TextBatchEncoder& encoder = (opened ? opened : run.text_encoder)->encoder;
  tokens.max_length = null.size(0) - encoder.num_states(0);
  inference::Prompts prompts = inference::prompts_of_tokens({""}, tokens);
  inference::encode(prompts, encoder);
  const data::Text& text = prompts.all.front().text;
  const at::Tensor states =
      at::tensor(text.tokens).view({-1, null.size(1)}).narrow(0, 0, text.length);
  const int64_t pieces = ceil_div(null.size(0), text.length);
  null.copy_(states.repeat({pieces, 1}).narrow(0, 0, null.size(0)));
  const at::Tensor vector = run.trainable->model().null_vector();
  if (vector.defined()) {
    vector.copy_(at::tensor(text.pooled));
  }
  for (const at::Tensor& made : {null, vector}) {
    if (world.size() > 1 && made.defined()) {
      world.broadcast(made, 0);
    }
  }
  if (run.writes()) {
    log_info("[train] captions that are dropped, and guidance, read ", text.length,
             " states of an empty caption, by ", run.config.text.encoder);
  }
}

}  // namespace kinora::train
