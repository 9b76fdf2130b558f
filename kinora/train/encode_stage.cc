#include "kinora/train/encode_stage.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace kinora::train {

EncodeStage::EncodeStage(const pipelines::LatentEncoder* encoder,
                         const pipelines::TextBatchEncoder* texts, uint64_t seed, at::Device device,
                         bool beside)
    : encoder_(encoder), texts_(texts), seed_(seed), device_(device) {
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

void EncodeStage::encode_texts(data::Batch& batch) const {
  if (texts_ != nullptr && batch.tokens.defined()) {
    pipelines::EncodedTexts encoded = texts_->encode(batch.tokens, batch.text_lengths);
    batch.text = std::move(encoded.states);
    batch.pooled = std::move(encoded.pooled);
    batch.tokens.reset();
  }
}

void EncodeStage::begin(StepSamples& samples) const {
  const c10::OptionalStreamGuard guard(stream_);
  for (data::Batch& batch : samples.batches) {
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
    for (const at::Tensor* made : {&batch.images, &batch.text, &batch.pooled}) {
      if (made->defined() && made->is_cuda()) {
        made->record_stream(current);  // its memory goes back to the other stream
      }
    }
  }
}

data::Batch EncodeStage::means(const data::Batch& batch) const {
  data::Batch result = batch;
  if (changes(batch)) {
    result.images = moments_of(batch).mean.to(at::kCPU);
    result.latent_std.reset();
  }
  encode_texts(result);
  for (at::Tensor* text : {&result.text, &result.pooled}) {
    if (text->defined()) {
      *text = text->to(at::kCPU);
    }
  }
  return result;
}

}  // namespace kinora::train
