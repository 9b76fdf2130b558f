#include "tests/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/data/index.h"
#include "kinora/data/media_set.h"
#include "kinora/data/table_rows.h"
#include "kinora/io/animation.h"
#include "kinora/io/csv.h"
#include "kinora/io/file.h"
#include "kinora/io/gguf.h"
#include "kinora/io/image.h"
#include "kinora/io/npz.h"
#include "kinora/io/picture_texts.h"
#include "kinora/io/safetensors.h"
#include "kinora/io/tar.h"
#include "kinora/io/zip.h"
#include "tests/places.h"

namespace kinora::fuzz {
namespace {

namespace fs = std::filesystem;

// A file that is only in memory, with a name that ends in `suffix`.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes, const std::string& suffix = "")
      : descriptor_(::memfd_create("fuzz", 0)) {
    KINORA_CHECK(descriptor_ >= 0 && ::write(descriptor_, bytes.data(), bytes.size()) ==
                                         static_cast<ssize_t>(bytes.size()),
                 kInternal, "[fuzz] no file in memory");
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
    if (!suffix.empty()) {
      const fs::path link =
          fs::temp_directory_path() / ("kinora-fuzz-" + std::to_string(::getpid()) + suffix);
      fs::remove(link);
      fs::create_symlink(path_, link);
      path_ = link;
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    ::close(descriptor_);
    std::error_code ignored;
    if (fs::is_symlink(path_, ignored) && path_.string().find("kinora-fuzz") != std::string::npos) {
      fs::remove(path_, ignored);
    }
  }

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  int descriptor_;
  fs::path path_;
};

constexpr size_t kTarBlock = 512;

void set_tar_sum(std::span<std::byte> header) {
  std::fill_n(header.begin() + 148, 8, std::byte{' '});
  unsigned sum = 0;
  for (const std::byte byte : header) {
    sum += static_cast<unsigned>(byte);
  }
  std::array<char, 9> text = {};
  std::snprintf(text.data(), text.size(), "%06o", sum);
  std::memcpy(header.data() + 148, text.data(), 8);
}

Bytes tar_entry(const std::string& name, char type, const std::string& content) {
  Bytes entry(kTarBlock + round_up(content.size(), kTarBlock));
  auto* text = reinterpret_cast<char*>(entry.data());
  std::snprintf(text, 100, "%s", name.c_str());
  std::snprintf(text + 124, 12, "%011zo", content.size());
  text[156] = type;
  std::memcpy(text + 257,
              "ustar\0"
              "00",
              8);
  set_tar_sum(std::span(entry).first(kTarBlock));
  std::copy(content.begin(), content.end(), text + kTarBlock);
  return entry;
}

Bytes tar_seed() {
  Bytes archive;
  for (const Bytes& part :
       {tar_entry("pax", 'x', "18 path=a/long/er\n"), tar_entry("a/0.png", '0', "picture"),
        tar_entry("././@LongLink", 'L', std::string(200, 'n')), tar_entry("x", '0', "y"),
        tar_entry("a/0.txt", '0', "a caption"), tar_entry("a/0.json", '0', R"({"text": "b"})"),
        tar_entry("a/0.cls", '0', "3"), Bytes(2 * kTarBlock)}) {
    archive.insert(archive.end(), part.begin(), part.end());
  }
  return archive;
}

void repair_tar(Bytes& archive) {
  for (size_t at = 0; at + kTarBlock <= archive.size(); at += kTarBlock) {
    const auto block = std::span(archive).subspan(at, kTarBlock);
    if (std::memcmp(block.data() + 257, "ustar", 5) == 0) {
      set_tar_sum(block);
    }
  }
}

void parse_tar(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  const io::TarFile archive = io::TarFile::open(file.path());
  uint64_t sum = 0;
  for (const io::TarEntry& entry : archive.entries()) {
    for (const std::byte byte : archive.bytes(entry)) {
      sum += static_cast<uint64_t>(byte);
    }
  }
  KINORA_CHECK(sum != UINT64_MAX, kInternal, "[fuzz] keeps the reads");
  (void)data::list_webdataset({file.path()});
}

void parse_csv(std::span<const std::byte> bytes) {
  io::CsvReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "fuzz");
  std::vector<std::string> fields;
  while (reader.next(fields)) {
  }
}

void parse_manifest(std::span<const std::byte> bytes, const char* suffix) {
  const MemoryFile file(bytes, suffix);
  const data::MediaSet set = data::list_manifests({file.path()}, {});
  for (const data::MediaItem& item : set.items) {
    const fs::path inside = fs::path(item.path).lexically_relative(file.path().parent_path());
    KINORA_CHECK(*inside.begin() != "..", kInternal, "[fuzz] a path leads outside: ", item.path);
  }
}

Bytes index_seed() {
  data::IndexWriter writer;
  writer.add("a/0.png", {.facts = {.height = 8, .width = 9}, .cause = "", .stamp = 5});
  writer.add("a/1.png", {.facts = {}, .cause = "cut off", .stamp = 6, .is_checked = true});
  const fs::path path =
      fs::temp_directory_path() / ("kinora-fuzz-" + std::to_string(::getpid()) + ".index");
  writer.write(path);
  Bytes bytes = io::read_file(path, 1 << 20);
  fs::remove(path);
  return bytes;
}

// As kinora/data/index.cc lays them out.
void repair_index(Bytes& bytes) {
  constexpr size_t kHeader = 64;
  if (bytes.size() >= kHeader) {
    const uint64_t content = io::checksum_value(std::span(bytes).subspan(kHeader));
    std::memcpy(bytes.data() + 40, &content, sizeof(content));
    const uint64_t header = io::checksum_value(std::span(bytes).first(kHeader - 8));
    std::memcpy(bytes.data() + kHeader - 8, &header, sizeof(header));
  }
}

void parse_index(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  const data::Index index = data::Index::open(file.path());
  for (int64_t i = 0; i < index.size(); ++i) {
    (void)index.find(index.name(i));
    (void)std::string(index.entry(i).cause);
  }
  (void)index.find("a/7.png");
}

/// Where in an archive its directory says that entries begin and what their CRCs are.
void repair_zip(Bytes& archive) {
  constexpr size_t kLocal = 30;
  for (size_t at = 0; at + kLocal <= archive.size(); ++at) {
    if (std::memcmp(archive.data() + at, "PK\x01\x02", 4) != 0 || at + 46 > archive.size()) {
      continue;
    }
    uint32_t size = 0;
    uint32_t offset = 0;
    std::memcpy(&size, archive.data() + at + 20, sizeof(size));
    std::memcpy(&offset, archive.data() + at + 42, sizeof(offset));
    if (archive.size() < kLocal || offset > archive.size() - kLocal) {
      continue;
    }
    uint16_t name = 0;
    uint16_t extra = 0;
    std::memcpy(&name, archive.data() + offset + 26, sizeof(name));
    std::memcpy(&extra, archive.data() + offset + 28, sizeof(extra));
    const size_t begin = offset + kLocal + name + extra;
    if (begin <= archive.size() && size <= archive.size() - begin) {
      const uint32_t crc = io::crc32(std::span(archive).subspan(begin, size));
      std::memcpy(archive.data() + at + 16, &crc, sizeof(crc));
    }
  }
}

void parse_gguf(std::span<const std::byte> bytes) {
  const MemoryFile memory(bytes);
  const io::GgufFile file = io::GgufFile::open(memory.path());
  for (const io::GgufTensor& tensor : file.tensors()) {
    std::vector<float> values(static_cast<size_t>(io::num_elements(tensor)));
    io::read_floats(tensor, 0, io::num_elements(tensor), values);
  }
}

void parse_npz(std::span<const std::byte> bytes) {
  const MemoryFile memory(bytes);
  const io::NpzFile file = io::NpzFile::open(memory.path());
  std::optional<Error> last;
  for (const std::string& name : file.names()) {
    try {
      uint64_t sum = 0;
      const io::NpyArray array = file.read(name);
      for (const std::byte byte : array.data()) {
        sum += static_cast<uint64_t>(byte);
      }
      KINORA_CHECK(sum != UINT64_MAX, kInternal, "[fuzz] keeps the reads");
    } catch (const Error& error) {  // the others are read all the same
      last = error;
    }
  }
  if (last) {
    throw Error(*last);
  }
}

void parse_image(std::span<const std::byte> bytes) {
  try {
    (void)io::image_size(bytes, "fuzz");
  } catch (const Error&) {  // decoding has its own say
  }
  (void)io::decode_image(bytes, "fuzz");
}

}  // namespace

std::vector<Target> targets() {
  const fs::path images = source_path("tests/data/data");
  const auto fixture = [&images](const char* name) {
    return io::read_file(images / name, 1 << 20);
  };
  const auto small = [](const char* name) {
    return io::read_file(source_path("tests/io/data/images") / name, 1 << 20);
  };
  io::Image grey;
  io::set_size(grey, 5, 7);
  std::vector<Target> all = {
      {"tar", parse_tar, {tar_seed()}, repair_tar},
      {"csv", parse_csv, {bytes_of("path,text\r\n\"a,\"\"b\"\"\",c\n\nd,\"e\nf\"\n")}},
      {"csv_manifest",
       [](auto bytes) { parse_manifest(bytes, ".csv"); },
       {bytes_of("path,text,label,num_frames,fps\na/0.png,\"x, y\",cat,1,nan\n../b.mp4,z,,51,24\n"
                 "/etc/c.jpg,,dog,x,1e99\n")}},
      {"jsonl_manifest",
       [](auto bytes) { parse_manifest(bytes, ".jsonl"); },
       {bytes_of("{\"file_name\": \"a.png\", \"text\": \"x\\u00fc\", \"label\": 3}\n"
                 "{\"path\": \"../b.png\", \"caption\": null, \"fps\": [1, {\"a\": 2}]}\n")}},
      {"json_caption",
       [](auto bytes) {
         (void)data::json_caption({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                  "fuzz");
       },
       {bytes_of(R"({"id": [1, 2], "caption": "a \"b\" \u1234"})")}},
      {"index", parse_index, {index_seed()}, repair_index},
      {"safetensors",
       [](auto bytes) { (void)io::SafetensorsFile::open(MemoryFile(bytes).path()); },
       {io::read_file(source_path("tests/io/data/python.safetensors"), 1 << 20)}},
      {"gguf", parse_gguf, {io::read_file(source_path("tests/io/data/types.gguf"), 1 << 20)}},
      {"npz",
       parse_npz,
       {io::read_file(source_path("tests/io/data/npz/stored.npz"), 1 << 20),
        io::read_file(source_path("tests/io/data/npz/deflated.npz"), 1 << 20),
        io::read_file(source_path("tests/io/data/npz/versions.npz"), 1 << 20)},
       repair_zip},
      {"picture_texts",
       [](std::span<const std::byte> bytes) { (void)io::read_texts(bytes, "picture"); },
       {io::with_png_texts(
            io::encode_png(grey),
            std::vector<io::PictureText>{{"parameters", "a\nb"}, {"kinora", "\xC3\xA9"}}),
        io::with_webp_texts(io::encode_webp(std::span(&grey, 1), 1.0),
                            std::vector<io::PictureText>{{"kinora", "{\"a\": \"<&>\"}"}}),
        io::with_gif_texts(io::encode_gif(std::vector<io::Image>(2, grey), 1.0),
                           std::vector<io::PictureText>{{"parameters", "a\nb"}, {"kinora", "c"}})}},
      {"image", parse_image, {io::encode_png(grey), fixture("photo.jpg"), fixture("photo.webp")}},
      {"gif",
       parse_image,
       {small("animated.gif"), small("interlaced.gif"), small("small_frame.gif")}},
      {"bmp", parse_image, {small("1bit.bmp"), small("8bit.bmp"), small("32bit.bmp")}},
      {"tiff",
       parse_image,
       {small("rgb_plain.tif"), small("rgb_tiff_lzw.tif"), small("fax.tif"), small("palette.tif"),
        small("orientation_6.tif"), small("rgb16.tif")}},
  };
  for (auto more : {prompt_targets, torch_targets, tokenizer_targets}) {
    for (Target& target : more()) {
      all.push_back(std::move(target));
    }
  }
  return all;
}

}  // namespace kinora::fuzz
