#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "kinora/io/image.h"
#include "kinora/io/picture_texts.h"

namespace kinora::inference {

/// What files of samples are.
enum class FileFormat : uint8_t {
  kUsual,  ///< png of images; of clips a folder of png frames, and webp
  kPng,    ///< of clips a folder of frames
  kWebp,   ///< lossless
  kGif,
  kMp4,  ///< of clips only
};

/// Error (kConfig) where samples of a model of clips, or of images, cannot be written so.
void check_format(FileFormat format, bool is_video);

/// What samples are, as they are written.
enum class SampleKind : uint8_t { kImages, kClips, kLatents };

struct SampleFilesOptions {
  std::filesystem::path folder;  ///< sample_folder.h
  SampleKind kind = SampleKind::kImages;
  std::vector<std::optional<int64_t>> labels;  ///< of each sample; nothing: not known
  double fps = 0.0;                            ///< of clips
  FileFormat format = FileFormat::kUsual;
  /// What the file of sample `index` keeps beside its pixels; empty: nothing.
  std::function<std::vector<io::PictureText>(int64_t index)> texts = {};
  std::optional<int64_t> only = {};  ///< the one sample that is wanted; the others count as there
};

/// Writes every sample by itself in its format as soon as it is drawn: image-00000.png (with
/// _class-N where the class is known), clip-00000.webp, the frames in clip-00000/. At every moment
/// what has such a name is whole. Several processes may write different samples of a folder.
class SampleFiles {
 public:
  explicit SampleFiles(SampleFilesOptions options);
  SampleFiles(const SampleFiles&) = delete;
  SampleFiles& operator=(const SampleFiles&) = delete;
  /// Waits for what is being written.
  ~SampleFiles();

  /// Of each sample, whether it is there.
  [[nodiscard]] std::vector<bool> there() const;

  /// What is written of sample `index`.
  [[nodiscard]] std::vector<std::filesystem::path> outputs(int64_t index) const;

  /// Writes samples first, first + 1, ... that are not there, float32 on the CPU: pixels [B, 3 or
  /// 1, H, W] or clips [B, 3 or 1, T, H, W] in [-1, 1], or latents of other channels. Goes on in
  /// the background until the next call of this or finish(), which may throw what went wrong.
  void write(int64_t first, const at::Tensor& samples);

  /// Returns once all is written. kIo.
  void flush();

  /// When all samples are there: the contact sheet of the first ones, grid.png, of a clip a row of
  /// its frames, of long clips 32 of them, evenly spaced; latents all in latents.safetensors. Where
  /// a drawing of fewer was finished, what it made grows. Returns what is there, in words.
  std::string finish();

 private:
  struct Ready;

  [[nodiscard]] std::filesystem::path stem(int64_t index) const;
  [[nodiscard]] std::filesystem::path latent_path(int64_t index) const;
  [[nodiscard]] std::filesystem::path tile_path(int64_t index) const;
  [[nodiscard]] int64_t num_joined() const;
  [[nodiscard]] bool is_there(int64_t index, int64_t num_joined) const;
  [[nodiscard]] Ready ready(int64_t index, const at::Tensor& sample) const;
  void write(const Ready& sample) const;
  void write_file(const std::filesystem::path& path, const Ready& sample) const;
  void join_latents() const;
  [[nodiscard]] std::vector<io::Image> tiles_of_grid(const std::filesystem::path& path) const;
  [[nodiscard]] int64_t write_grid(const std::filesystem::path& path) const;

  SampleFilesOptions options_;
  std::future<void> writing_;
};

}  // namespace kinora::inference
