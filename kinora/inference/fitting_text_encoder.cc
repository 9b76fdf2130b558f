#include "kinora/inference/fitting_text_encoder.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/device/free_memory.h"
#include "kinora/pipelines/text_encoder_file.h"

namespace kinora::inference {
namespace {

// For what is computed beside the weights: 64 texts of 300 tokens take less in T5-XXL.
constexpr int64_t kReserve = 512LL << 20;

}  // namespace

std::unique_ptr<models::TextEncoder> open_fitting_text_encoder(const std::filesystem::path& path,
                                                               const TextEncoderRoom& room) {
  const int64_t needed =
      pipelines::weight_bytes(*pipelines::outlined_text_encoder(path), room.type, room.eight_bits);
  const int64_t free = std::max<int64_t>(device::free_memory(room.device) - kReserve, 0);
  const bool is_limited =
      room.memory_gib > 0.0 && room.memory_gib * kGiB < static_cast<double>(free);
  const auto most = is_limited ? static_cast<int64_t>(room.memory_gib * kGiB) : free;
  const bool streamed = needed > most;
  if (streamed && room.says) {
    log_info("[sample] the text encoder's weights take ", human_bytes(needed), ", and ",
             is_limited ? "the memory budget is " : "there is room for ", human_bytes(most),
             ": each block is read from its file when it is used, which is slower");
  }
  return pipelines::open_text_encoder(path,
                                      {.device = room.device,
                                       .type = room.type,
                                       .eight_bits = streamed ? std::nullopt : room.eight_bits,
                                       .streamed = streamed,
                                       .adapters = room.adapters});
}

}  // namespace kinora::inference
