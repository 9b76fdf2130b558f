#include "kinora/train/encode_stage.h"

#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "kinora/inference/shown_beside.h"

namespace kinora::train {

EncodeStage::EncodeStage(const pipelines::LatentEncoder* encoder,
                         const pipelines::TextBatchEncoder* texts, uint64_t seed, at::Device device,
                         bool beside, models::UnetInput input)
    : encoder_(encoder), texts_(texts), seed_(seed), device_(device), input_(input) {
  if (device.is_cuda() && beside) {
    const c10::impl::VirtualGuardImpl backend(device.type());
    stream_ = backend.getNewStream(device, /*priority=*/0);
    c10::Event weights(device.type());  // which the current stream may still be writing
    weights.record(backend.getStream(device));
    weights.block(*stream_);
  }
}

bool EncodeStage::changes(const data::Batch& batch) const {
  return batch.latent_std.defined() ||
         (encoder_ != nullptr && batch.images.scalar_type() == at::kByte);
}

models::LatentMoments EncodeStage::moments_of(const data::Batch& batch) const {
  if (encoder_ != nullptr && batch.images.scalar_type() == at::kByte) {
    return encoder_->encode(batch.images);
  }
  return {.mean = batch.images.to(device_, /*non_blocking=*/true),
          .std = batch.latent_std.to(device_, /*non_blocking=*/true)};
}

void EncodeStage::encode_shown(data::Batch& batch) const {
  if (input_ == models::UnetInput::kPlain) {
    return;
  }
  batch.beside = inference::shown_beside(batch, input_, encoder_, device_);
  if (input_ == models::UnetInput::kInpaint) {
    batch.mask.reset();  // which weighs no loss
  }
  batch.before.reset();
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
    encode_shown(batch);
    if (changes(batch)) {
      batch.images = pipelines::draw_latents(moments_of(batch), batch.sample_index, seed_);
      batch.latent_std.reset();
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
    for (const at::Tensor* made : {&batch.images, &batch.text, &batch.pooled, &batch.beside}) {
      if (made->defined() && made->is_cuda()) {
        made->record_stream(current);  // its memory goes back to the other stream
      }
    }
  }
}

data::Batch EncodeStage::means(const data::Batch& batch) const {
  data::Batch result = batch;
  encode_shown(result);
  if (changes(batch)) {
    result.images = moments_of(batch).mean.to(at::kCPU);
    result.latent_std.reset();
  }
  encode_texts(result);
  for (at::Tensor* made : {&result.text, &result.pooled, &result.beside}) {
    if (made->defined()) {
      *made = made->to(at::kCPU);
    }
  }
  return result;
}

}  // namespace kinora::train
