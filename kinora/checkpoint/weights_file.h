#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

/// A file of named weights: .safetensors, or what torch.save wrote (.pt, .pth, .th, .bin). Of a
/// training file of the original DiT the averaged weights ("ema") are taken if asked for and there,
/// else "model" or "state_dict", else the top level.
class WeightsFile {
 public:
  /// kIo for a file that is damaged or of another kind.
  [[nodiscard]] static WeightsFile open(const std::filesystem::path& path, bool averaged = true);

  WeightsFile(WeightsFile&&) noexcept;
  WeightsFile& operator=(WeightsFile&&) noexcept;
  ~WeightsFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(const std::string& name) const;
  [[nodiscard]] std::vector<int64_t> shape(const std::string& name) const;
  /// A copy on the CPU, in the file's dtype.
  [[nodiscard]] at::Tensor read(const std::string& name) const;
  /// The text that a safetensors header has under `key`; "" if it has none.
  [[nodiscard]] std::string metadata(const std::string& key) const;

 private:
  struct Content;
  WeightsFile(std::filesystem::path path, std::unique_ptr<Content> content);

  std::filesystem::path path_;
  std::unique_ptr<Content> content_;
};

/// Copies every parameter of `model` from the file into the arena's master weights (and averages,
/// where there are any) and every buffer that the file has. Strict: missing and unexpected names
/// and wrong shapes are an error (kIo) that lists them, and then nothing is changed. The patch
/// projection of an image model fits that of a model of clips whose patches are one frame deep.
void load_weights(const WeightsFile& file, nn::Module& model, optim::Arena& arena);

/// The key in the header of files written by save_weights under which the run's configuration lies.
inline constexpr const char* kConfigMetadata = "kinora.config";

/// Writes the weights in `role` (the master, an average) and the buffers as one safetensors file
/// with the model's key names, in `type` (fp32, bf16, fp16). Atomic. Where state is divided every
/// rank calls it, and the first of those who divide it writes.
void save_weights(const std::filesystem::path& path, nn::Module& model, const optim::Arena& arena,
                  optim::Role role, at::ScalarType type, const std::string& config);

/// The same of a checkpoint: the same bytes, with memory for one tensor. Of `model` only the
/// buffers are used, after the checkpoint's have been read into them. Checksums are compared first.
/// kIo.
void convert_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& path,
                        nn::Module& model, optim::Role role, at::ScalarType type);

}  // namespace kinora::checkpoint
