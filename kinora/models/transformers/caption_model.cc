#include "kinora/models/transformers/caption_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <utility>
#include <variant>

#include "kinora/core/error.h"
#include "kinora/models/run_block.h"

// Shapes: B batch, T frames of patches, S patches of a frame, C hidden, L text tokens.

namespace kinora::models {
namespace {

/// Has blocks read what was made of the text before: of each that does, in order.
void give_texts(std::vector<ops::Block>& blocks, const std::vector<at::Tensor>& texts) {
  auto text = texts.begin();
  for (ops::Block& block : blocks) {
    for (ops::Branch& branch : block.branches) {
      if (auto* reader = std::get_if<ops::CrossAttentionBody>(&branch.body)) {
        reader->text_packed = *text++;
      }
    }
  }
}

}  // namespace

CaptionModel::CaptionModel(const ModelConfig& config)
    : BlockModel(config),
      windows_(config.transformer.sliding_window, SlidingWindow::Tiles::kFrame),
      x_embedder(config, 3),
      t_embedder(config.transformer.hidden, config.time_scale),
      t_block(config.transformer.hidden, 6, true),
      y_embedder(config),
      final_layer(config) {
  add_child("x_embedder", x_embedder);
  add_child("t_embedder", t_embedder);
  add_child("t_block", t_block);
  if (config.text_encoder.any()) {
    text_encoder.emplace(config);
    add_child("text_encoder", *text_encoder);
  }
  add_child("y_embedder", y_embedder);
  add_child("final_layer", final_layer);
  final_layer.set_layer(config.transformer.depth + 1);
  // As PixArt starts; the block vectors are not zero at first.
  set_init(*this,
           {"t_block.1.weight", "y_embedder.y_proj.fc1.weight", "y_embedder.y_proj.fc2.weight"},
           nn::Init::normal(0.02));
}

void CaptionModel::to_device(const at::Device& device) {
  BlockModel::to_device(device);
  if (text_encoder) {
    text_encoder->to_device(device);
  }
}

void CaptionModel::set_block_buckets(const std::vector<std::string>& blocks,
                                     std::vector<std::vector<nn::Linear*>> linears,
                                     TextReaders readers) {
  set_buckets(block_buckets(*this, blocks), std::move(linears));
  readers_ = std::move(readers);
}

diffusion::Prepared CaptionModel::prepare(const at::Tensor& times,
                                          const diffusion::Conditions& conditions) {
  (void)BlockModel::prepare(times, conditions);
  const bool has_text = captions_of(config(), conditions).defined() &&
                        (!text_encoder || conditions.text_lengths.defined());
  if (!is_fast() || !has_text || pipeline() != nullptr) {  // forward says what is missing
    return {};
  }
  return {.of_times = seam_vectors_at(times, conditions), .of_texts = packed_texts(conditions)};
}

at::Tensor CaptionModel::seam_vectors_at(const at::Tensor& times,
                                         const diffusion::Conditions& conditions) const {
  const int64_t num_times = times.size(0);
  const int64_t batch = captions_of(config(), conditions).size(0);
  const at::Tensor& mask = conditions.frame_mask;
  const at::Tensor fixed = norm_vectors(0);
  const int64_t of_block = table(0).size(0) + (fixed.defined() ? fixed.size(0) : 0);
  const int64_t columns = (num_blocks() * of_block + 2) * config().transformer.hidden;
  const int64_t rows = num_times * batch * (mask.defined() ? mask.size(1) : 1);
  if (rows * columns * static_cast<int64_t>(sizeof(float)) > diffusion::Prepared::kMaxBytes) {
    return {};
  }
  diffusion::Conditions repeated;
  for (const auto tensor :
       {&diffusion::Conditions::fps, &diffusion::Conditions::height, &diffusion::Conditions::width,
        &diffusion::Conditions::num_frames, &diffusion::Conditions::frame_mask,
        &diffusion::Conditions::given_levels}) {
    if ((conditions.*tensor).defined()) {
      repeated.*tensor = at::cat(std::vector(static_cast<size_t>(num_times), conditions.*tensor));
    }
  }
  return seam_vectors(time_vectors(times.repeat_interleave(batch), repeated), blocks_of({}))
      .view({num_times, -1, columns});
}

std::vector<at::Tensor> CaptionModel::packed_texts(const diffusion::Conditions& conditions) const {
  if (readers_.empty()) {
    return {};
  }
  const at::Tensor text = fast_texts(conditions);
  if (static_cast<int64_t>(readers_.size() * 2 * text.nbytes()) > diffusion::Prepared::kMaxBytes) {
    return {};
  }
  std::vector<at::Tensor> texts;
  const size_t blocks_a_reader =
      static_cast<size_t>(num_blocks()) / readers_.size();  // the first of them reads
  for (size_t i = 0; i < readers_.size(); ++i) {
    with_bucket(block_bucket(static_cast<int64_t>(i * blocks_a_reader)),
                [&] { texts.push_back(packed_text(readers_[i](), text)); });
  }
  return texts;
}

void CaptionModel::check_size(const at::Tensor& x_t) const {
  const Grid grid = grid_of(config(), x_t);
  const Grid own = grid_of(config());
  KINORA_CHECK((grid.frames == own.frames || grid.frames == 1) && grid.rows == own.rows &&
                   grid.columns == own.columns,
               kShape, "[model] ", config().name, " is for x_t of ", config().frames, " x ",
               config().height, " x ", config().width, " or one such frame, got ", x_t.sizes());
}

const at::Tensor& CaptionModel::required(const at::Tensor& number, const char* name,
                                         const at::Tensor& t) const {
  KINORA_CHECK(number.defined() && number.dim() == 1 && number.size(0) == t.size(0), kShape,
               "[model] ", config().name, " needs ", name, ", float32 [", t.size(0), "]");
  return number;
}

at::Tensor CaptionModel::embed(const at::Tensor& x_t, const at::Tensor& positions) const {
  const at::Tensor patches = sequence().enter(to_patches(config(), x_t));
  return x_embedder.forward(patches) + sequence().enter(positions);
}

BlockConditions CaptionModel::block_conditions(const at::Tensor& vectors,
                                               const diffusion::Conditions& conditions) const {
  return {vectors, embed_text(conditions), caption_lengths(config(), conditions)};
}

at::Tensor CaptionModel::fast_texts(const diffusion::Conditions& conditions) const {
  return embed_text(conditions);
}

at::Tensor CaptionModel::fast_text_lengths(const diffusion::Conditions& conditions) const {
  return caption_lengths(config(), conditions);
}

at::Tensor CaptionModel::embed_text(const diffusion::Conditions& conditions) const {
  const at::Tensor text =
      text_encoder ? text_encoder->embed_captions(conditions.tokens, conditions.text_lengths)
                   : conditions.text;
  return y_embedder.forward(text, conditions.null_text);
}

at::Tensor CaptionModel::run_plain(int64_t use, bool recompute, const at::Tensor& x,
                                   const BlockConditions& conditions, const Body& body) const {
  std::vector<at::Tensor> inputs = {x, conditions.vectors, conditions.text};
  if (conditions.null_text.defined()) {
    inputs.push_back(conditions.null_text);
  }
  return run_block(
      [body, lengths = conditions.text_lengths,
       reads_text = conditions.reads_text](const std::vector<at::Tensor>& in) {
        return body(in[0], {in[1], in[2], lengths, reads_text,
                            reads_text.defined() ? in[3] : at::Tensor()});
      },
      inputs, recompute, hook(), block_bucket(use));
}

at::Tensor CaptionModel::seam_vectors(const TimeVectors& time, BlockSpan blocks) const {
  std::vector<at::Tensor> tables;
  std::vector<at::Tensor> fixed;
  for (int64_t use = blocks.first; use < blocks.end; ++use) {
    tables.push_back(table(use));
    if (const at::Tensor vectors = norm_vectors(use); vectors.defined()) {
      fixed.push_back(vectors);
    }
  }
  at::Tensor of_blocks = at::stack(tables) + time.vectors.unsqueeze(2);  // [B, T or 1, L, n, C]
  if (!fixed.empty()) {
    const at::Tensor all = at::stack(fixed);  // [L, m, C]
    of_blocks = at::cat({of_blocks, all.expand({of_blocks.size(0), of_blocks.size(1), all.size(0),
                                                all.size(1), all.size(2)})},
                        3);
  }
  if (blocks.end < num_blocks()) {
    return of_blocks.flatten(2).flatten(0, 1);
  }
  const at::Tensor last = final_layer.modulation(time.condition.of_frames());  // [B, T or 1, 2, C]
  return at::cat({of_blocks.flatten(2, 3), last}, 2).flatten(2, 3).flatten(0, 1);
}

at::Tensor CaptionModel::run_fast(std::vector<ops::Block> blocks, const at::Tensor& x,
                                  const at::Tensor& x_t, const at::Tensor& t,
                                  const diffusion::Conditions& conditions,
                                  const diffusion::Pass& pass) const {
  const diffusion::Prepared& prepared = pass.prepared;
  const at::Tensor vectors = prepared.of_times.defined()
                                 ? prepared.of_times
                                 : seam_vectors(time_vectors(t, conditions), blocks_of(pass));
  if (!prepared.of_texts.empty()) {
    give_texts(blocks, prepared.of_texts);
  }
  at::Tensor lengths = fast_text_lengths(conditions);
  if (lengths.defined()) {
    lengths = lengths.to(at::kInt).contiguous();
  }
  const at::Tensor h =
      BlockModel::run(stack(std::move(blocks), pass),
                      {.x = x,
                       .vectors = vectors,
                       .text = prepared.of_texts.empty() ? fast_texts(conditions) : at::Tensor(),
                       .text_lengths = lengths},
                      pass);
  return h.defined() ? to_clip(final_layer.project(h), x_t) : at::Tensor();
}

at::Tensor CaptionModel::finish(const at::Tensor& x, const FrameCondition& condition,
                                const at::Tensor& x_t) const {
  return x.defined() ? to_clip(final_layer.forward(x, condition.of_frames()), x_t) : at::Tensor();
}

ClipTokens CaptionModel::clip_tokens(const Grid& grid, const at::Tensor& rotary) const {
  const SlidingWindow* const window = window_of(grid, rotary.device());
  return {.rotary = models::own_tokens(sequence(), window, rotary),
          .tokens_a_frame = grid.tokens_a_frame(),
          .blocks = window != nullptr ? window->blocks() : nullptr};
}

at::Tensor CaptionModel::own_tokens(const at::Tensor& tokens, const Grid& grid) const {
  return models::own_tokens(sequence(), window_of(grid, tokens.device()), tokens);
}

const SlidingWindow* CaptionModel::window_of(const Grid& grid, at::Device device) const {
  return windows_.any() ? &windows_.of(grid, /*others=*/0, device) : nullptr;
}

at::Tensor CaptionModel::to_clip(const at::Tensor& part, const at::Tensor& x_t) const {
  const Grid grid = grid_of(config(), x_t);
  const at::Tensor patches =
      all_tokens(sequence(), window_of(grid, part.device()), part, grid.tokens_a_frame());
  return tapped(from_patches(config(), patches, x_t));
}

}  // namespace kinora::models
