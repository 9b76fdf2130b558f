#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/comm/group.h"
#include "kinora/core/rounding.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/block_layout.h"

namespace kinora::pipelines {

/// A text encoder's blocks, of which each rank of a group holds a part. A block's weights are
/// gathered for as long as it computes, and those of the next one meanwhile. So a rank holds its
/// part of all blocks, and room for two whole ones.
class SharedBlocks {
 public:
  /// Borrows `encoder`; `tensors`, by its paths, are read here, of each block this rank's part
  /// alone. type: fp32, bf16 or fp16, what weights are kept in.
  SharedBlocks(models::TextEncoder& encoder, const checkpoint::LateTensors& tensors,
               const comm::Group& ranks, at::Device device, at::ScalarType type);

  /// Its models::TextBlockHook. All ranks encode equally often, in the same order.
  void use(int64_t block, bool begins);

  /// Elements that a rank of `ranks` holds for the encoder's blocks, rooms included.
  [[nodiscard]] static int64_t elements_held(const BlockLayout& layout, int64_t ranks);

 private:
  /// Elements of a block that each rank holds.
  [[nodiscard]] static int64_t part_of(int64_t room, int64_t ranks) {
    return ceil_div(room, ranks);
  }
  [[nodiscard]] const at::Tensor& room_of(int64_t block) const {
    return rooms_[static_cast<size_t>(block) % rooms_.size()];
  }
  void gather(int64_t block);

  BlockLayout layout_;
  comm::Group ranks_;
  std::vector<at::Tensor> parts_;    // one a block: this rank's
  std::array<at::Tensor, 2> rooms_;  // of even and odd blocks
  int64_t gathered_ = -1;            // the block of work_
  comm::Work work_;
};

}  // namespace kinora::pipelines
