#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/io/pickle_globals.h"

/// The part of Python's pickle format (CPython's Lib/pickletools.py, protocols 2 to 5) that files
/// of torch.save use. Only tensors and plain containers are built, from a fixed list of names;
/// nothing is imported or called, so a file cannot run code.
namespace kinora::io {

struct PickleValue;
using PickleRef = const PickleValue*;

/// A tensor: elements of a storage. Every index it can reach lies within the storage.
struct TorchTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements, never negative
  int64_t offset = 0;            ///< of the first element in the storage, in elements
  int64_t num_elements = 0;
  size_t storage_index = 0;            ///< into PickleDocument::storages
  std::span<const std::byte> storage;  ///< the whole storage, maybe unaligned; set by TorchFile
};

/// The memory of tensors, which lies outside of the pickle.
struct TorchStorage {
  std::string_view key;  ///< names the storage in its file
  int64_t num_bytes = 0;
  int64_t element_size = 1;  ///< of the tensor that named it first
};

struct PickleNone {};
/// An integer outside of int64, little-endian two's complement.
struct PickleBigInt {
  std::string_view bytes;
};
struct PickleBytes {
  std::string_view bytes;
};
struct PickleList {
  std::vector<PickleRef> items;
};
/// Also torch.Size.
struct PickleTuple {
  std::vector<PickleRef> items;
};
/// Pairs in the order in which the file sets them.
struct PickleDict {
  enum class Kind { kDict, kOrderedDict, kNamespace };  ///< an argparse.Namespace holds attributes
  Kind kind = Kind::kDict;
  std::vector<std::pair<PickleRef, PickleRef>> items;
};
/// Part of a storage, as tensors see it.
struct PickleStorage {
  size_t index = 0;  ///< into PickleDocument::storages
  DType dtype = DType::kF32;
  int64_t offset = 0;        ///< in elements
  int64_t num_elements = 0;  ///< from there on
};
/// A Python object of which only the kind is kept: torch.device, NumPy scalars.
struct PickleOpaque {
  std::string_view name;
};

/// A Python name that is not on the list, such as a class that training left as a key. Nothing can
/// be made with it: any such use is refused.
struct PickleName {
  std::string_view module;
  std::string_view name;
};

/// Any value. Text is as in the file: of any length and not checked to be UTF-8.
struct PickleValue {
  std::variant<PickleNone, bool, int64_t, PickleBigInt, double, std::string_view, PickleBytes,
               PickleList, PickleTuple, PickleDict, const TorchTensor*, PickleStorage,
               const PickleGlobal*, PickleOpaque, PickleName>
      value;

  /// Null when it is of another type.
  template <typename T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&value);
  }
};

/// "a dict", "text": for messages.
[[nodiscard]] std::string_view type_name(const PickleValue& value);

/// The value of text key `key`, the last one as in Python; null when there is none.
[[nodiscard]] PickleRef find(const PickleDict& dict, std::string_view key);

/// The values of one pickle. It borrows text from the pickle's bytes. From the root no value can
/// reach itself, nesting is at most kMaxPickleDepth deep, and following all paths meets at most
/// kMaxPickleValues values: recursion over the tree is safe.
struct PickleDocument {
  std::deque<PickleValue> values;  // a deque: elements never move, and destruction is flat
  std::deque<TorchTensor> tensors;
  std::vector<TorchStorage> storages;
  PickleRef root = nullptr;
};

inline constexpr int kMaxPickleDepth = 100;
inline constexpr int64_t kMaxPickleValues = 10'000'000;

/// Throws kIo, naming `file`, unless the tree below `root` keeps these limits.
void check_pickle_tree(PickleRef root, const std::string& file);

/// Reads the pickle that begins at `*position` of `bytes` and moves the position behind it. Throws
/// kIo, naming `file`, for damaged pickles, for what is made by names that are not on the list, and
/// beyond the limits above.
[[nodiscard]] PickleDocument read_pickle(std::span<const std::byte> bytes, size_t* position,
                                         const std::string& file);

}  // namespace kinora::io
