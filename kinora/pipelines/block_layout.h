#pragma once

#include <cstdint>
#include <vector>

#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/nn/module.h"

namespace kinora::pipelines {

/// A parameter in the room of its block.
struct PlacedParameter {
  nn::NamedParameter named;
  int64_t begin = 0;  ///< its first element
  int64_t count = 0;  ///< its elements
};

/// Where the weights of a text encoder's blocks lie, block by block, one behind the other. Weights
/// begin at places that suit the vector loads of kernels and copies.
class BlockLayout {
 public:
  /// Borrows the parameters of `encoder`.
  explicit BlockLayout(models::TextEncoder& encoder);

  [[nodiscard]] int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  [[nodiscard]] const std::vector<PlacedParameter>& block(int64_t number) const {
    return blocks_[static_cast<size_t>(number)];
  }
  /// Elements of a block's room.
  [[nodiscard]] int64_t room_of(int64_t block) const;
  /// Of the largest one.
  [[nodiscard]] int64_t largest_room() const;

 private:
  std::vector<std::vector<PlacedParameter>> blocks_;
};

}  // namespace kinora::pipelines
