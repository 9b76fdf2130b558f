#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/nn/naming.h"

namespace kinora::checkpoint {

/// Named weights on the disk: .safetensors, of which 8-bit floats are read as fp32, times the scale
/// that stands beside them, .gguf, of which blocks of few bits are read as fp32,
/// what torch.save wrote (.pt, .pth, .th, .bin), several of those with an index, or a folder of
/// Hugging Face (weights_paths.h). Of a training file of the original DiT the averaged weights
/// ("ema") are taken if asked for and there, else "model", "state_dict" or "module", else the top
/// level.
class WeightsFile {
 public:
  /// kIo for a file that is damaged or of another kind, for a name that two files have, and for one
  /// that is not where an index says.
  [[nodiscard]] static WeightsFile open(const std::filesystem::path& path, bool averaged = true);

  WeightsFile(WeightsFile&&) noexcept;
  WeightsFile& operator=(WeightsFile&&) noexcept;
  ~WeightsFile();

  /// As it was opened.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In alphabetical order.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(const std::string& name) const;
  [[nodiscard]] std::vector<int64_t> shape(const std::string& name) const;
  /// A copy on the CPU, in the file's dtype.
  [[nodiscard]] at::Tensor read(const std::string& name) const;
  /// All of them, in the mapped files: this must outlive them.
  [[nodiscard]] LateTensors tensors() const;
  /// The text that a safetensors header has under `key`; "" if it has none.
  [[nodiscard]] std::string metadata(const std::string& key) const;

  /// Names tensors as we do from now on, where all keys of one of ours are there; others stay as
  /// they are. kIo where a copy is not the same, and where parts do not fit together.
  void rename(const nn::Naming& naming);

  /// Forgets tensors by their names.
  void drop(const std::function<bool(const std::string& name)>& is_dropped);

 private:
  struct Content;
  WeightsFile(std::filesystem::path path, std::unique_ptr<Content> content);

  std::filesystem::path path_;
  std::unique_ptr<Content> content_;
};

}  // namespace kinora::checkpoint
