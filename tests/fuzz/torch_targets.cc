// Files of torch.save: whole ones, the pickle in them, and pickles put together opcode by opcode.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/io/pickle.h"
#include "kinora/io/torch_file.h"
#include "kinora/io/zip.h"
#include "tests/fuzz/targets.h"
#include "tests/places.h"

namespace kinora::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSeed = 1 << 20;

Bytes fixture(const char* name) {
  return io::read_file(source_path("tests/io/data") / name, kMaxSeed);
}

void parse_torch_file(std::span<const std::byte> bytes) {
  const fs::path path =
      fs::temp_directory_path() / ("kinora-fuzz-" + std::to_string(::getpid()) + ".pt");
  {
    io::FileWriter writer(path);
    writer.append(bytes);
    writer.close();
  }
  struct Removal {
    fs::path path;
    ~Removal() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } removal{path};
  const io::TorchFile file = io::TorchFile::open(path);
  for (const io::NamedTorchTensor& named : file.tensors()) {
    (void)io::checksum_value(io::contiguous(*named.tensor));  // touches every byte
  }
}

/// Without checksums a zip archive's content counts, and not whether it was changed.
void remove_checksums(Bytes& archive) {
  const std::string_view text = as_text(archive);
  for (size_t at = text.find("PK\x01\x02"); at != std::string_view::npos;
       at = text.find("PK\x01\x02", at + 1)) {
    for (size_t i = at + 16; i < at + 20 && i < archive.size(); ++i) {
      archive[i] = std::byte{0};
    }
  }
}

/// Reads a pickle; what it makes must keep what its header promises.
void check_pickle(std::span<const std::byte> bytes) {
  size_t position = 0;
  const io::PickleDocument document = io::read_pickle(bytes, &position, "fuzz");
  KINORA_CHECK(position <= bytes.size() && document.root != nullptr, kInternal,
               "[fuzz] a pickle that ends behind its end");
  for (const io::TorchTensor& tensor : document.tensors) {
    const io::TorchStorage& storage = document.storages.at(tensor.storage_index);
    int64_t last = tensor.offset;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      last += tensor.num_elements == 0 ? 0 : (tensor.shape[i] - 1) * tensor.strides[i];
    }
    const auto element = static_cast<int64_t>(size_of(tensor.dtype));
    KINORA_CHECK(tensor.num_elements == 0 || (last + 1) * element <= storage.num_bytes, kInternal,
                 "[fuzz] a tensor that reaches beyond its storage");
  }
}

Bytes pickle_in(const Bytes& archive) {
  const io::ZipArchive zip(archive, "seed");
  for (const io::ZipEntry& entry : zip.entries()) {
    if (entry.name.ends_with("/data.pkl")) {
      return {entry.data.begin(), entry.data.end()};
    }
  }
  KINORA_UNREACHABLE("[fuzz] a seed without a pickle");
}

std::string number(int64_t value) {
  std::string code = "\x8a\x08";
  for (int i = 0; i < 8; ++i) {
    code += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return code;
}
std::string word(const std::string& value) {
  return "\x8c" + std::string(1, static_cast<char>(value.size())) + value;
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

/// What a byte of a program stands for: opcodes with arguments that mean something to the reader,
/// so that most of what is drawn gets further than to the first one.
const std::vector<std::string>& fragments() {
  static const std::vector<std::string> kFragments = [] {
    std::vector<std::string> all;
    for (const char opcode : std::string_view("N()]}012ateusRbQ\x81\x85\x86\x87\x88\x89\x93\x94")) {
      all.emplace_back(1, opcode);
    }
    for (const char* memo : {"h\x01", "h\x02", "q\x01", "q\x02"}) {
      all.emplace_back(memo);
    }
    for (const int64_t value : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{6}, int64_t{-1},
                                int64_t{1} << 31, int64_t{1} << 62, INT64_MAX, INT64_MIN}) {
      all.push_back(number(value));
    }
    for (const auto& [module, name] : {std::pair{"torch._utils", "_rebuild_tensor_v2"},
                                       {"torch._utils", "_rebuild_tensor_v3"},
                                       {"torch._utils", "_rebuild_parameter"},
                                       {"collections", "OrderedDict"},
                                       {"argparse", "Namespace"},
                                       {"torch", "Size"},
                                       {"torch", "device"},
                                       {"torch", "float64"},
                                       {"torch", "HalfStorage"},
                                       {"os", "system"}}) {
      all.push_back(global(module, name));
      all.push_back(word(module) + word(name) + "\x93");
    }
    const std::string storage = "(" + word("storage") + global("torch", "FloatStorage") +
                                word("0") + word("cpu") + number(6) + "tQ";
    all.push_back(word("storage"));
    all.push_back(word("0"));
    all.push_back(storage);
    all.push_back(storage + number(1) + number(2) + "\x85" + number(3) + "\x85");
    all.push_back(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage + number(0) +
                  number(2) + number(3) + "\x86" + number(3) + number(1) + "\x86tR");
    return all;
  }();
  return kFragments;
}

void parse_program(std::span<const std::byte> bytes) {
  std::string pickle = "\x80\x02";
  for (const std::byte byte : bytes) {
    pickle += fragments()[std::to_integer<size_t>(byte) % fragments().size()];
  }
  check_pickle(bytes_of(pickle + "."));
}

Bytes program_of(const std::vector<std::string>& parts) {
  Bytes program;
  for (const std::string& part : parts) {
    size_t i = 0;
    while (fragments()[i] != part) {
      ++i;
    }
    program.push_back(static_cast<std::byte>(i));
  }
  return program;
}

std::vector<Bytes> program_seeds() {
  const std::string& tensor = fragments().back();
  const std::string& tensor_arguments = fragments()[fragments().size() - 2];
  const std::string rebuild = global("torch._utils", "_rebuild_tensor_v2");
  const std::string ordered = global("collections", "OrderedDict");
  return {
      program_of({"}", "(", word("0"), tensor, word("storage"), tensor, "u"}),
      program_of({"]", "q\x01", rebuild, "(", tensor_arguments, "t", "R", "a", "h\x01", "\x86"}),
      program_of({ordered, ")", "R", "q\x02", word("0"), number(1), "s", "h\x02", "\x86"}),
      program_of({global("argparse", "Namespace"), ")", "\x81", "}", word("0"), tensor, "s", "b",
                  "N", "\x88", "\x87"})};
}

}  // namespace

std::vector<Target> torch_targets() {
  const std::vector<Bytes> files = {fixture("torch_zip.pt"), fixture("torch_legacy.pt"),
                                    fixture("torch_zip_protocol4.pt"),
                                    fixture("torch_zip_no_crc.pt")};
  return {{"torch_file", parse_torch_file, files, remove_checksums},
          {"pickle", check_pickle, {pickle_in(files[0]), pickle_in(files[2])}},
          {"pickle_program", parse_program, program_seeds()}};
}

}  // namespace kinora::fuzz
