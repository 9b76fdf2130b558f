// Writes the ids of many texts, for tools/reference/compare_tokenizers.py, and says on standard
// error how long encoding them took.
//
// usage: kinora_tokenize_records TOKENIZER IN OUT
//
// IN is records of a little-endian uint32, the number of bytes, and these bytes. OUT is records of
// the number of ids and the ids, int32. A text that cannot be encoded has the one id -1.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/tokenizers/tokenizer.h"

namespace {

constexpr int64_t kMaxInput = int64_t{4} << 30;

std::vector<std::string_view> records_of(std::string_view bytes) {
  std::vector<std::string_view> records;
  while (!bytes.empty()) {
    uint32_t size = 0;
    KINORA_CHECK(bytes.size() >= sizeof(size), kIo, "a record is cut off");
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    KINORA_CHECK(bytes.size() >= size, kIo, "a record is cut off");
    records.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return records;
}

int run(const char* tokenizer_path, const char* in, const char* out) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  const auto load_start = Clock::now();
  const auto tokenizer = kinora::tokenizers::Tokenizer::load(tokenizer_path);
  const double load_seconds = seconds(load_start);
  const std::vector<std::byte> bytes = kinora::io::read_file(in, kMaxInput);
  const auto records = records_of(kinora::as_text(bytes));
  std::vector<int32_t> written;
  size_t num_ids = 0;
  double longest = 0;
  const auto start = Clock::now();
  for (const std::string_view record : records) {
    const auto one_start = Clock::now();
    std::vector<int64_t> ids;
    try {
      ids = tokenizer.encode(record).ids;
    } catch (const kinora::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ids = {-1};
    }
    longest = std::max(longest, seconds(one_start));
    num_ids += ids.size();
    written.push_back(static_cast<int32_t>(ids.size()));
    written.insert(written.end(), ids.begin(), ids.end());
  }
  std::fprintf(stderr, "load %.4f s, %zu texts, %zu ids, encode %.4f s, longest %.4f s\n",
               load_seconds, records.size(), num_ids, seconds(start), longest);
  kinora::io::FileWriter writer(out);
  writer.append(std::as_bytes(std::span(written)));
  writer.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: kinora_tokenize_records TOKENIZER IN OUT\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
