#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kinora/io/file.h"
#include "kinora/io/pickle.h"
#include "kinora/io/zip.h"

/// Reads files of torch.save (.pt, .pth, .th): the zip format (since PyTorch 1.6) and the older
/// one, both described by torch/serialization.py. Files cannot run code, see pickle.h.
namespace kinora::io {

/// A tensor with its path through the containers.
struct NamedTorchTensor {
  std::string name;                     ///< "blocks.0.attn.qkv.weight"
  const TorchTensor* tensor = nullptr;  ///< lives as long as the file
};

/// A file of torch.save, mapped: storages are read when touched.
class TorchFile {
 public:
  /// Reads the structure and checks that every tensor lies within the file. Throws kIo, naming the
  /// file, for damaged files, big-endian ones, TorchScript, Python objects other than tensors and
  /// plain containers, and dtypes that Kinora lacks.
  [[nodiscard]] static TorchFile open(const std::filesystem::path& path);

  /// What was given to torch.save. Text in it lives as long as the file.
  [[nodiscard]] const PickleValue& root() const { return *document_.root; }

  /// All tensors below the container that `path` names, in the file's order, named by the keys and
  /// list positions from there on, joined by dots. `path` is "" for the root or keys joined by "/":
  /// "ema", "state/model". Values that are no tensors, and those under keys that are neither text
  /// nor integers, are left out. Throws kIo where the path leads nowhere (naming the keys that
  /// there are) or to no container, and where two tensors get the same name.
  [[nodiscard]] std::vector<NamedTorchTensor> tensors(std::string_view path = "") const;

  /// Reads all of a zip file and compares its CRC-32s; `open` does so only for the structure. The
  /// older format has none.
  void verify() const;

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }

 private:
  explicit TorchFile(MappedFile file) : file_(std::move(file)) {}

  void open_zip();
  void open_legacy();
  void set_storages(std::span<const std::span<const std::byte>> storages);

  MappedFile file_;
  std::optional<ZipArchive> archive_;
  PickleDocument document_;
};

/// Bytes of the elements of `tensor` when packed; at most the size of its file.
[[nodiscard]] int64_t num_bytes(const TorchTensor& tensor);

/// Writes the elements of `tensor` in C order without gaps to `out`, of num_bytes(tensor) bytes.
void copy_contiguous(const TorchTensor& tensor, std::span<std::byte> out);

/// The same, into new memory.
[[nodiscard]] std::vector<std::byte> contiguous(const TorchTensor& tensor);

}  // namespace kinora::io
