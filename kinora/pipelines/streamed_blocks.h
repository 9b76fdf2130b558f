#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/block_layout.h"
#include "kinora/pipelines/staged_copies.h"

namespace kinora::pipelines {

/// Gives a text encoder's blocks their weights for as long as they compute. On a GPU there is room
/// for two blocks: one arrives while the other computes.
class StreamedBlocks {
 public:
  /// Borrows `encoder`. `tensors`, by its paths, lie in `files`.
  StreamedBlocks(models::TextEncoder& encoder, std::vector<checkpoint::WeightsFile> files,
                 checkpoint::LateTensors tensors, at::Device device, at::ScalarType type);

  /// Its models::TextBlockHook.
  void use(int64_t block, bool begins);

 private:
  /// A block's weights in the encoder's type: on the CPU copies, on a GPU on their way into the
  /// block's room.
  [[nodiscard]] std::vector<at::Tensor> read(int64_t block);
  void read_ahead(int64_t block);

  std::vector<checkpoint::WeightsFile> files_;  // first, since tensors_ are in them
  checkpoint::LateTensors tensors_;
  at::ScalarType type_;
  BlockLayout layout_;
  std::array<at::Tensor, 2> rooms_;       // on a GPU: of even and odd blocks
  std::unique_ptr<StagedCopies> copies_;  // likewise
  int64_t ahead_ = -1;                    // the block of next_
  std::future<std::vector<at::Tensor>> next_;
};

}  // namespace kinora::pipelines
