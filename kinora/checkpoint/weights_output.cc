#include "kinora/checkpoint/weights_output.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

// Fits a core's cache, so that what is computed or copied is still there when it is written.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kSyncBytes = int64_t{64} << 20;

using Names = std::vector<std::string>;

at::ScalarType type_of(const LateTensor& tensor, const OutputOptions& options) {
  return options.type && at::isFloatingType(tensor.type) ? *options.type : tensor.type;
}

int64_t bytes_of_tensor(const LateTensor& tensor, const OutputOptions& options) {
  return tensor.numel() * static_cast<int64_t>(at::elementSize(type_of(tensor, options)));
}

/// Rows that are read at once.
int64_t rows_a_piece(const LateTensor& tensor) {
  if (!tensor.reads_rows) {
    return std::max<int64_t>(tensor.rows(), 1);
  }
  const int64_t bytes = tensor.numel() * static_cast<int64_t>(at::elementSize(tensor.type));
  const int64_t row = std::max<int64_t>(bytes / std::max<int64_t>(tensor.rows(), 1), 1);
  return std::max<int64_t>(kPieceBytes / row, 1);
}

/// Appends to a file that gets its name only when it is whole. As io::SafetensorsWriter, but
/// without a checksum, which costs a fifth of the time of a copy and which nobody asks for here.
class Output {
 public:
  explicit Output(const fs::path& path)
      : path_(path),
        temporary_(io::temporary_name(path)),
        writer_(std::in_place, temporary_, io::FileWriter::Create::kNew) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (writer_) {
      std::error_code ignored;
      fs::remove(temporary_, ignored);
    }
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {  // also where one row is long
      const auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(kPieceBytes)));
      writer_->append(part);
      bytes = bytes.subspan(part.size());
      if (writer_->size() - started_ >=
          kSyncBytes) {  // so that the end need not wait for all of it
        writer_->start_sync(started_, writer_->size() - started_);
        started_ = writer_->size();
      }
    }
  }

  void finish() {
    writer_->sync();
    writer_->close();
    io::rename_durably(temporary_, path_);
    writer_.reset();
  }

 private:
  fs::path path_;
  fs::path temporary_;
  std::optional<io::FileWriter> writer_;  // none once finished
  int64_t started_ = 0;                   // bytes that the system was asked to write
};

void write_tensor(Output& output, const LateTensor& tensor, at::ScalarType type) {
  const int64_t rows = tensor.numel() == 0 ? 0 : tensor.rows();
  const int64_t step = rows_a_piece(tensor);
  for (int64_t row = 0; row < rows; row += step) {
    const at::Tensor piece =
        tensor.read(row, std::min(row + step, rows)).to(at::kCPU, type).contiguous();
    output.append(device::bytes_of(piece));
  }
}

void write_file(const fs::path& path, const LateTensors& tensors, const Names& names,
                const OutputOptions& options) {
  std::vector<io::SafetensorsSpec> specs;
  specs.reserve(names.size());
  for (const std::string& name : names) {
    const LateTensor& tensor = tensors.at(name);
    specs.push_back(
        {.name = name, .dtype = device::dtype_of(type_of(tensor, options)), .shape = tensor.shape});
  }
  // As the format's writers do, so that every tensor is aligned to its element.
  std::ranges::stable_sort(specs, std::ranges::greater{},
                           [](const io::SafetensorsSpec& spec) { return size_of(spec.dtype); });
  const std::string header = io::safetensors_header(specs, options.metadata);
  Output output(path);
  output.append(std::as_bytes(std::span(header)));
  for (const io::SafetensorsSpec& spec : specs) {
    write_tensor(output, tensors.at(spec.name), device::scalar_type(spec.dtype));
  }
  output.finish();
}

/// The names of each file, in the order of names.
std::vector<Names> divided(const LateTensors& tensors, const OutputOptions& options) {
  std::vector<Names> files(1);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t more = bytes_of_tensor(tensor, options);
    if (options.max_shard_bytes > 0 && bytes > 0 && bytes + more > options.max_shard_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(name);
    bytes += more;
  }
  return files;
}

std::string shard_name(const std::string& stem, size_t number, size_t count) {
  char numbers[64];
  std::snprintf(numbers, sizeof(numbers), "-%05zu-of-%05zu", number, count);
  return stem + numbers + ".safetensors";
}

void check_room(const fs::path& folder, int64_t bytes) {
  const int64_t room = io::free_space(folder);
  KINORA_CHECK(room >= bytes, kIo, "[convert] ", folder, " must have room for ", human_bytes(bytes),
               ", got ", human_bytes(room));
}

}  // namespace

std::vector<fs::path> write_weights(const fs::path& path, const LateTensors& tensors,
                                    const OutputOptions& options) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    total += bytes_of_tensor(tensor, options);
  }
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  check_room(folder, total);
  const std::vector<Names> parts = divided(tensors, options);
  if (parts.size() == 1) {
    write_file(path, tensors, parts.front(), options);
    return {path};
  }
  std::vector<fs::path> files;
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = shard_name(path.stem().string(), i + 1, parts.size());
    for (const std::string& tensor : parts[i]) {
      weight_map[tensor] = name;
    }
    files.push_back(folder / name);
    write_file(files.back(), tensors, parts[i], options);
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}},
                                {"weight_map", std::move(weight_map)}};
  files.push_back(path.string() + ".index.json");
  io::write_file_atomic(files.back(), index.dump(2) + "\n");
  return files;
}

}  // namespace kinora::checkpoint
