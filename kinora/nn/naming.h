#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// How the files of others name and cut the tensors of a model.
namespace kinora::nn {

/// One of our tensors in files of another naming.
struct OtherName {
  std::string path;  ///< ours
  /// Theirs: laid one after the other along dim 0, these are ours.
  std::vector<std::string> keys;
  /// Keys under which such files repeat a tensor of one key.
  std::vector<std::string> copies = {};
  /// Shape of theirs where it has other dims than ours for the same elements; [] = as ours.
  std::vector<int64_t> shape = {};
};

using Naming = std::vector<OtherName>;

}  // namespace kinora::nn
