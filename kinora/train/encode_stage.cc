#include "kinora/train/encode_stage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "kinora/inference/shown_beside.h"

namespace kinora::train {

EncodeStage::EncodeStage(uint64_t seed, at::Device device, const EncodeOptions& options)
    : ranks_(options.encoder == nullptr ? comm::Group() : options.ranks),
      texts_(options.texts),
      seed_(seed),
      device_(device),
      input_(options.input),
      given_(options.given),
      compression_(options.compression),
      states_(options.states) {
  if (options.encoder != nullptr) {
    encoder_.emplace(options.encoder->together(ranks_));
  }
  if (device.is_cuda() && options.beside && ranks_.size() == 1) {
    const c10::impl::VirtualGuardImpl backend(device.type());
    stream_ = backend.getNewStream(device, /*priority=*/0);
    c10::Event weights(device.type());  // which the current stream may still be writing
    weights.record(backend.getStream(device));
    weights.block(*stream_);
  }
}

const pipelines::LatentEncoder* EncodeStage::encoder() const {
  return encoder_ ? &*encoder_ : nullptr;
}

bool EncodeStage::all_have(bool own) const {
  if (ranks_.size() == 1) {
    return own;
  }
  const at::Tensor missing =
      at::full({1}, own ? 0 : 1, at::kLong);  // on the CPU: the host reads it
  ranks_.all_reduce(missing, comm::Reduction::kMax);
  return missing.item<int64_t>() == 0;
}

bool EncodeStage::changes(const data::Batch& batch) const {
  return batch.latent_std.defined() || (encoder_ && batch.images.scalar_type() == at::kByte);
}

models::LatentMoments EncodeStage::moments_of(const data::Batch& batch) const {
  if (encoder_ && batch.images.scalar_type() == at::kByte) {
    return encoder_->encode(batch.images);
  }
  return {.mean = batch.images.to(device_, /*non_blocking=*/true),
          .std = batch.latent_std.to(device_, /*non_blocking=*/true)};
}

void EncodeStage::encode_shown(data::Batch& batch, int64_t step) const {
  if (input_ == models::ShownInput::kPlain) {
    return;
  }
  if (models::shows_frames(input_)) {
    inference::FrameShowing{
        .input = input_, .ratios = given_, .seed = seed_, .step = step, .states = states_}
        .add_to(batch, *encoder_);
    return;
  }
  batch.beside = inference::shown_beside(batch, input_, encoder(), device_);
  if (models::fills_in(input_)) {
    batch.mask.reset();  // which weighs no loss
  }
  batch.masked.reset();
  batch.before.reset();
  batch.references.reset();
  batch.num_references.reset();
}

at::Tensor EncodeStage::encode_given(const data::Batch& batch, const at::Tensor& pixels,
                                     int64_t step) const {
  const at::Tensor& latents = batch.images;  // [B, C, t, h, w]
  const int64_t frames = latents.size(2);
  const at::Tensor masks = diffusion::draw_frame_masks(
      given_, frames, {.seed = seed_, .step = step, .sample_index = batch.sample_index},
      compression_);
  // Of each count of frames at an end, the samples that are given so many.
  std::map<std::pair<bool, int64_t>, std::vector<int64_t>> rows_of;
  for (int64_t b = 0; b < masks.size(0); ++b) {
    const bool* const noised = masks.const_data_ptr<bool>() + b * frames;
    const int64_t head = std::find(noised, noised + frames, true) - noised;
    const int64_t tail =
        std::find(std::reverse_iterator(noised + frames), std::reverse_iterator(noised), true) -
        std::reverse_iterator(noised + frames);
    rows_of[{false, head}].push_back(b);
    rows_of[{true, tail}].push_back(b);
  }
  at::Tensor given = at::zeros_like(latents);
  for (const auto& [end, rows] : rows_of) {
    const auto& [is_tail, count] = end;
    if (count == 0) {
      continue;
    }
    const int64_t shown = models::pixel_frames(encoder_->space(), count);
    const at::Tensor alone =
        encoder_
            ->encode(pixels.index_select(0, at::tensor(rows, at::kLong).to(pixels.device()))
                         .narrow(2, is_tail ? pixels.size(2) - shown : 0, shown)
                         .contiguous())
            .mean;
    for (size_t i = 0; i < rows.size(); ++i) {
      given[rows[i]]
          .narrow(1, is_tail ? frames - count : 0, count)
          .copy_(alone[static_cast<int64_t>(i)]);
    }
  }
  return given;
}

void EncodeStage::encode_texts(data::Batch& batch) const {
  if (texts_ != nullptr && batch.tokens.defined()) {
    pipelines::EncodedTexts encoded = texts_->encode(batch.tokens, batch.text_lengths);
    batch.text = std::move(encoded.states);
    batch.pooled = std::move(encoded.pooled);
    batch.text_lengths = batch.text_lengths + texts_->num_states(0);
    batch.tokens.reset();
  }
}

void EncodeStage::begin(StepSamples& samples) const {
  const c10::OptionalStreamGuard guard(stream_);
  for (data::Batch& batch : samples.batches) {
    encode_shown(batch, samples.step);
    if (changes(batch)) {
      const at::Tensor pixels = batch.images;
      batch.images = pipelines::draw_latents(moments_of(batch), batch.sample_index, seed_);
      batch.latent_std.reset();
      const bool is_clip = batch.images.dim() == 5 && batch.images.size(2) > 1;
      const bool gives = given_.weights.sum() > 0.0 && !models::shows_frames(input_);
      if (gives && is_clip && pixels.scalar_type() == at::kByte) {
        batch.given = encode_given(batch, pixels, samples.step);
      }
    } else {
      batch.images = batch.images.to(device_, /*non_blocking=*/true);
    }
    encode_texts(batch);
  }
  if (stream_) {
    samples.ready.emplace(device_.type());
    samples.ready->record(*stream_);
  }
}

void EncodeStage::wait(const StepSamples& samples) const {
  if (!samples.ready) {
    return;
  }
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  samples.ready->block(current);
  for (const data::Batch& batch : samples.batches) {
    for (const at::Tensor* made : {&batch.images, &batch.text, &batch.pooled, &batch.beside,
                                   &batch.given, &batch.image_prompt}) {
      if (made->defined() && made->is_cuda()) {
        made->record_stream(current);  // its memory goes back to the other stream
      }
    }
  }
}

data::Batch EncodeStage::means(const data::Batch& batch) const {
  data::Batch result = batch;
  encode_shown(result, /*step=*/0);
  if (changes(batch)) {
    result.images = moments_of(batch).mean.to(at::kCPU);
    result.latent_std.reset();
  }
  encode_texts(result);
  for (at::Tensor* made : {&result.text, &result.pooled, &result.beside, &result.image_prompt}) {
    if (made->defined()) {
      *made = made->to(at::kCPU);
    }
  }
  return result;
}

}  // namespace kinora::train
