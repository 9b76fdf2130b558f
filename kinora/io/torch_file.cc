#include "kinora/io/torch_file.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::io {
namespace {

// MAGIC_NUMBER and PROTOCOL_VERSION of torch/serialization.py; the magic as pickle's little-endian
// bytes of 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kLegacyProtocol = 1001;
constexpr size_t kMaxShownKeys = 12;

/// A key as it stands in dotted names; nothing for kinds of keys that have none.
std::optional<std::string> key_name(PickleRef key) {
  if (const auto* text = key->get_if<std::string_view>()) {
    return std::string(*text);
  }
  if (const auto* number = key->get_if<int64_t>()) {
    return std::to_string(*number);
  }
  return std::nullopt;
}

/// Keys for a message.
std::string list_keys(const PickleDict& dict) {
  std::string text;
  for (size_t i = 0; i < dict.items.size() && i < kMaxShownKeys; ++i) {
    text +=
        (i > 0 ? ", " : "") +
        in_quotes(
            key_name(dict.items[i].first).value_or(std::string(type_name(*dict.items[i].first))));
  }
  return text + (dict.items.size() > kMaxShownKeys ? ", ..." : "");
}

class Collector {
 public:
  explicit Collector(const std::string& file) : file_(file) {}

  // Recursion is bounded by kMaxPickleDepth.
  void collect(const PickleValue& value, const std::string& name) {
    if (const auto* tensor = value.get_if<const TorchTensor*>()) {
      KINORA_CHECK(names_.insert(name).second, kIo, "[torch_file] ", file_,
                   ": tensors must have different names, got ", in_quotes(name), " twice");
      found_.push_back({name, *tensor});
    } else if (const auto* dict = value.get_if<PickleDict>()) {
      for (const auto& [key, item] : dict->items) {
        if (const std::optional<std::string> key_text = key_name(key)) {
          collect(*item, join(name, *key_text));
        }
      }
    } else if (const auto* list = value.get_if<PickleList>()) {
      collect_items(list->items, name);
    } else if (const auto* tuple = value.get_if<PickleTuple>()) {
      collect_items(tuple->items, name);
    }
  }

  std::vector<NamedTorchTensor> take() { return std::move(found_); }

 private:
  static std::string join(const std::string& name, const std::string& key) {
    return name.empty() ? key : name + "." + key;
  }

  void collect_items(const std::vector<PickleRef>& items, const std::string& name) {
    for (size_t i = 0; i < items.size(); ++i) {
      collect(*items[i], join(name, std::to_string(i)));
    }
  }

  const std::string& file_;
  std::vector<NamedTorchTensor> found_;
  std::unordered_set<std::string> names_;
};

std::string kind_of_file(std::span<const std::byte> bytes) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with("version https://git-lfs")) {
    return "a Git LFS pointer. Hint: run `git lfs pull`";
  }
  if (text.starts_with("<")) {
    return "a web page. Hint: the download went wrong";
  }
  if (text.size() > 262 && text.substr(257, 5) == "ustar") {
    return "a tar file. Hint: torch.load and torch.save files from before PyTorch 0.2 again";
  }
  return "bytes " + in_quotes(text.substr(0, 8));
}

}  // namespace

TorchFile TorchFile::open(const std::filesystem::path& path) {
  TorchFile file{MappedFile(path)};
  const std::string_view text = as_text(file.file_.bytes());
  if (text.starts_with("PK\x03\x04")) {
    file.open_zip();
  } else {
    KINORA_CHECK(text.starts_with("\x80"), kIo, "[torch_file] ", path.string(),
                 " must be a file of torch.save, got ", kind_of_file(file.file_.bytes()));
    file.open_legacy();
  }
  return file;
}

void TorchFile::open_zip() {
  const std::string file = path().string();
  archive_.emplace(file_.bytes(), file);
  const ZipEntry* pickle = nullptr;
  bool is_script = false;
  for (const ZipEntry& entry : archive_->entries()) {
    const size_t slash = entry.name.find('/');
    const std::string_view inner =
        slash == std::string::npos ? "" : std::string_view(entry.name).substr(slash + 1);
    is_script = is_script || inner == "constants.pkl" || inner.starts_with("code/");
    if (inner == "data.pkl") {
      KINORA_CHECK(pickle == nullptr, kIo, "[torch_file] ", file,
                   " must hold one data.pkl, got several");
      pickle = &entry;
    }
  }
  KINORA_CHECK(!is_script, kIo, "[torch_file] ", file,
               " must be a file of torch.save, got TorchScript. Hint: in Python, "
               "torch.save(torch.jit.load(FILE).state_dict(), NEW_FILE).");
  KINORA_CHECK(pickle != nullptr, kIo, "[torch_file] ", file,
               " must be a file of torch.save, got a zip archive without data.pkl");
  const std::string folder = pickle->name.substr(0, pickle->name.find('/') + 1);
  if (const ZipEntry* order = archive_->find(folder + "byteorder")) {
    KINORA_CHECK(as_text(order->data) == "little", kIo, "[torch_file] ", file,
                 " must be little-endian, got byte order ", in_quotes(as_text(order->data)));
  }

  archive_->verify(*pickle);
  size_t position = 0;
  document_ = read_pickle(pickle->data, &position, file);
  KINORA_CHECK(position == pickle->data.size(), kIo, "[torch_file] ", file,
               ": data.pkl must end with its pickle, got ", pickle->data.size() - position,
               " bytes more");
  std::vector<std::span<const std::byte>> storages;
  for (const TorchStorage& storage : document_.storages) {
    const ZipEntry* entry = archive_->find(folder + "data/" + std::string(storage.key));
    KINORA_CHECK(entry != nullptr, kIo, "[torch_file] ", file, " must hold storage ",
                 in_quotes(storage.key), ", got none");
    storages.push_back(entry->data);
  }
  set_storages(storages);
}

/// Five pickles (magic number, protocol, system, object, list of storage keys), then for each key
/// the number of elements (int64) and the elements.
void TorchFile::open_legacy() {
  const std::string file = path().string();
  const std::span<const std::byte> bytes = file_.bytes();
  size_t position = 0;
  const PickleDocument magic = read_pickle(bytes, &position, file);
  const auto* number = magic.root->get_if<PickleBigInt>();
  KINORA_CHECK(number != nullptr && number->bytes == kLegacyMagic, kIo, "[torch_file] ", file,
               " must be a file of torch.save, got another pickle");
  const PickleDocument protocol = read_pickle(bytes, &position, file);
  const auto* version = protocol.root->get_if<int64_t>();
  KINORA_CHECK(
      version != nullptr && *version == kLegacyProtocol, kIo, "[torch_file] ", file,
      " must be of torch.save's protocol ", kLegacyProtocol, ", got ",
      version != nullptr ? std::to_string(*version) : std::string(type_name(*protocol.root)));
  const PickleDocument system = read_pickle(bytes, &position, file);
  const auto* facts = system.root->get_if<PickleDict>();
  const PickleRef little = facts != nullptr ? find(*facts, "little_endian") : nullptr;
  const bool* is_little = little != nullptr ? little->get_if<bool>() : nullptr;
  KINORA_CHECK(is_little != nullptr && *is_little, kIo, "[torch_file] ", file,
               " must be little-endian, got ",
               is_little != nullptr ? "big-endian data" : "no byte order");

  document_ = read_pickle(bytes, &position, file);
  const PickleDocument key_document = read_pickle(bytes, &position, file);
  const auto* keys = key_document.root->get_if<PickleList>();
  KINORA_CHECK(keys != nullptr, kIo, "[torch_file] ", file, " must have a list of storages, got ",
               type_name(*key_document.root));
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < document_.storages.size(); ++i) {
    index.emplace(document_.storages[i].key, i);
  }
  KINORA_CHECK(keys->items.size() == index.size(), kIo, "[torch_file] ", file, " must have ",
               index.size(), " storages, got ", keys->items.size());
  std::vector<std::span<const std::byte>> storages(index.size());
  for (const PickleRef key : keys->items) {
    const auto* name = key->get_if<std::string_view>();
    const auto found = name != nullptr ? index.find(*name) : index.end();
    KINORA_CHECK(found != index.end(), kIo, "[torch_file] ", file,
                 " must list each storage once, got ",
                 name != nullptr ? in_quotes(*name) : std::string(type_name(*key)));
    const TorchStorage& storage = document_.storages[found->second];
    uint64_t num_elements = 0;
    const size_t left = bytes.size() - position;
    KINORA_CHECK(left >= sizeof(num_elements) &&
                     std::cmp_less_equal(storage.num_bytes, left - sizeof(num_elements)),
                 kIo, "[torch_file] ", file, " must hold ", storage.num_bytes, " bytes of storage ",
                 in_quotes(*name), ", got only ", left, " bytes. Hint: the file may be cut off.");
    for (size_t i = sizeof(num_elements); i-- > 0;) {
      num_elements = num_elements << 8 | std::to_integer<uint64_t>(bytes[position + i]);
    }
    KINORA_CHECK(std::cmp_equal(num_elements, storage.num_bytes / storage.element_size), kIo,
                 "[torch_file] ", file, ": storage ", in_quotes(*name), " must have ",
                 storage.num_bytes / storage.element_size, " elements, got ", num_elements);
    position += sizeof(num_elements);
    storages[found->second] = bytes.subspan(position, static_cast<size_t>(storage.num_bytes));
    position += storages[found->second].size();
    index.erase(found);
  }
  KINORA_CHECK(position == bytes.size(), kIo, "[torch_file] ", file,
               " must end with its last storage, got ", bytes.size() - position, " bytes more");
  set_storages(storages);
}

void TorchFile::set_storages(std::span<const std::span<const std::byte>> storages) {
  for (size_t i = 0; i < storages.size(); ++i) {
    KINORA_CHECK(std::cmp_equal(storages[i].size(), document_.storages[i].num_bytes), kIo,
                 "[torch_file] ", path().string(), ": storage ",
                 in_quotes(document_.storages[i].key), " must have ",
                 document_.storages[i].num_bytes, " bytes, got ", storages[i].size());
  }
  for (TorchTensor& tensor : document_.tensors) {
    // Expanded views repeat elements: allowed, but no small file may ask for much memory.
    KINORA_CHECK(std::cmp_less_equal(num_bytes(tensor), file_.bytes().size()), kIo, "[torch_file] ",
                 path().string(), ": a tensor must be at most as large as its file, got ",
                 num_bytes(tensor), " bytes by repeated elements. Hint: save its .contiguous().");
    tensor.storage = storages[tensor.storage_index];
  }
}

std::vector<NamedTorchTensor> TorchFile::tensors(std::string_view path) const {
  const std::string file = this->path().string();
  PickleRef container = document_.root;
  for (std::string_view rest = path; !rest.empty();) {
    const std::string_view key = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), key.size() + 1));
    const auto* dict = container->get_if<PickleDict>();
    const PickleRef next = dict != nullptr ? find(*dict, key) : nullptr;
    KINORA_CHECK(next != nullptr, kIo, "[torch_file] ", file, " must hold ", in_quotes(path),
                 ", got ",
                 dict != nullptr ? "only the keys " + list_keys(*dict)
                                 : std::string(type_name(*container)) + " instead of a dict");
    container = next;
  }
  KINORA_CHECK(container->get_if<PickleDict>() != nullptr ||
                   container->get_if<PickleList>() != nullptr ||
                   container->get_if<PickleTuple>() != nullptr,
               kIo, "[torch_file] ", file, ": ", in_quotes(path), " must be a dict or list, got ",
               type_name(*container));
  Collector collector(file);
  collector.collect(*container, "");
  return collector.take();
}

void TorchFile::verify() const {
  if (archive_) {
    for (const ZipEntry& entry : archive_->entries()) {
      archive_->verify(entry);
    }
  }
}

int64_t num_bytes(const TorchTensor& tensor) {
  return tensor.num_elements * static_cast<int64_t>(size_of(tensor.dtype));
}

void copy_contiguous(const TorchTensor& tensor, std::span<std::byte> out) {
  KINORA_CHECK(std::cmp_equal(out.size(), num_bytes(tensor)), kInternal,
               "[torch_file] the target must have ", num_bytes(tensor), " bytes, got ", out.size());
  if (out.empty()) {
    return;
  }
  // The longest packed tail of dims is copied in one piece; an odometer walks the others. Dims of
  // one element are left out: their strides are never used, and may be any number.
  struct Dim {
    int64_t size;
    int64_t stride;
    int64_t index;
  };
  std::vector<Dim> dims;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] != 1) {
      dims.push_back({tensor.shape[i], tensor.strides[i], 0});
    }
  }
  const size_t element = size_of(tensor.dtype);
  int64_t run = 1;  // elements
  while (!dims.empty() && dims.back().stride == run) {
    run *= dims.back().size;
    dims.pop_back();
  }
  const size_t run_bytes = static_cast<size_t>(run) * element;
  int64_t source = tensor.offset;
  for (size_t done = 0; done < out.size(); done += run_bytes) {
    std::memcpy(out.data() + done, tensor.storage.data() + static_cast<size_t>(source) * element,
                run_bytes);
    for (size_t i = dims.size(); i-- > 0;) {
      source += dims[i].stride;
      if (++dims[i].index < dims[i].size) {
        break;
      }
      source -= dims[i].size * dims[i].stride;
      dims[i].index = 0;
    }
  }
}

std::vector<std::byte> contiguous(const TorchTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_bytes(tensor)));
  copy_contiguous(tensor, bytes);
  return bytes;
}

}  // namespace kinora::io
