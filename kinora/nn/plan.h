#pragma once

#include <string>
#include <vector>

/// Plain data that a model hands to the floors above and beside it.
namespace kinora::nn {

/// One flat bucket of parameters (design, "Parameter arena"): which parameters lie in it, in order.
struct BucketSpec {
  std::string name;
  std::vector<std::string> parameters;  ///< full paths
  bool fp32_island = false;             ///< its compute copy is the fp32 master itself
  /// Buckets of one ring are used one after the other, so that where memory is short they can take
  /// turns in the same buffers (optim::Sharding). Empty: it is used all the time.
  std::string ring = {};
  /// Holds a block: most of the model's time goes by such, and most of what forward keeps.
  bool is_block = false;
};

}  // namespace kinora::nn
