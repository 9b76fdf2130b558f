#include "kinora/data/row_file.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"

namespace kinora::data {
namespace {

// Room for the header, whose text depends on the number of rows; they begin on a page.
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kLengthBytes = 8;

}  // namespace

RowFile::RowFile(std::filesystem::path path, std::string tensor, DType dtype,
                 std::vector<int64_t> row, std::string parts)
    : path_(std::move(path)),
      tensor_(std::move(tensor)),
      dtype_(dtype),
      row_(std::move(row)),
      parts_(std::move(parts)),
      row_bytes_(std::accumulate(row_.begin(), row_.end(), static_cast<int64_t>(size_of(dtype)),
                                 std::multiplies<>())) {}

int64_t RowFile::offset_of(int64_t row) const {
  return static_cast<int64_t>(kHeaderBytes) + row * row_bytes_;
}

std::optional<std::vector<std::byte>> RowFile::read(int64_t first, int64_t count) const {
  if (!std::filesystem::exists(path_)) {
    return std::nullopt;
  }
  const io::FileReader reader(path_);
  if (offset_of(first + count) > reader.size()) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(static_cast<size_t>(count * row_bytes_));
  reader.read_at(offset_of(first), bytes);
  return bytes;
}

void RowFile::write(int64_t first, std::span<const std::byte> rows) {
  if (!writer_) {
    writer_ = std::make_unique<io::FileWriter>(path_, io::FileWriter::Create::kKeep);
  }
  writer_->write_at(offset_of(first), rows);
  writer_->sync();
}

std::string RowFile::header(int64_t count) const {
  std::vector<int64_t> shape = {count};
  shape.insert(shape.end(), row_.begin(), row_.end());
  std::string header = io::safetensors_header({{.name = tensor_, .dtype = dtype_, .shape = shape}},
                                              {{"parts", parts_}});
  KINORA_CHECK(header.size() <= kHeaderBytes, kInternal, "[cache] a header of ", header.size(),
               " bytes has no room");
  header.resize(kHeaderBytes, ' ');  // the format allows spaces behind the JSON
  uint64_t length = kHeaderBytes - kLengthBytes;
  for (size_t i = 0; i < kLengthBytes; ++i, length >>= 8) {
    header[i] = static_cast<char>(length & 0xff);
  }
  return header;
}

void RowFile::finish(int64_t count) {
  const std::string header = this->header(count);
  const int64_t bytes = offset_of(count);
  if (std::filesystem::exists(path_)) {
    std::vector<std::byte> now(kHeaderBytes);
    const io::FileReader reader(path_);
    if (reader.size() == bytes) {
      reader.read_at(0, now);
      if (std::ranges::equal(now, std::as_bytes(std::span(header)))) {
        return;
      }
    }
  }
  writer_.reset();
  io::FileWriter writer(path_, io::FileWriter::Create::kKeep);
  writer.write_at(0, std::as_bytes(std::span(header)));
  writer.sync();
  writer.close();
  std::filesystem::resize_file(path_, static_cast<uint64_t>(bytes));  // a torn block behind the end
  io::sync_folder(path_.parent_path());
}

}  // namespace kinora::data
