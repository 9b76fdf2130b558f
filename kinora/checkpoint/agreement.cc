#include "kinora/checkpoint/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>

#include "kinora/core/error.h"

namespace kinora::checkpoint {
namespace {

// The first letter of what a rank tells the others: that it is done, or the kind of its error.
constexpr char kDone = 'a';

std::string failure(ErrorKind kind, const char* message) {
  return static_cast<char>(kDone + 1 + static_cast<int>(kind)) + std::string(message);
}

}  // namespace

std::vector<std::string> gather_texts(const comm::Group& group, const std::string& mine) {
  if (group.size() == 1) {
    return {mine};
  }
  const auto size = static_cast<int64_t>(mine.size());
  const at::Tensor sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, at::empty({1}, at::kLong).fill_(size));
  const auto* size_of = sizes.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(size_of, size_of + group.size());
  const at::Tensor texts = at::empty({group.size(), longest}, at::kByte);
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  group.all_gather(texts, padded);
  std::vector<std::string> result;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const auto* text = static_cast<const char*>(texts.const_data_ptr()) + rank * longest;
    result.emplace_back(text, static_cast<size_t>(size_of[rank]));
  }
  return result;
}

std::vector<std::string> in_agreement(const comm::Group& group,
                                      const std::function<std::string()>& step) {
  if (group.size() == 1) {
    return {step()};
  }
  std::string mine;
  try {
    mine = kDone + step();
  } catch (const Error& error) {
    mine = failure(error.kind(), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    mine = failure(ErrorKind::kIo, error.what());
  } catch (const c10::OutOfMemoryError& error) {
    mine = failure(ErrorKind::kMemory, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    mine = failure(ErrorKind::kMemory, "out of memory");
  } catch (const std::exception& error) {
    mine = failure(ErrorKind::kInternal, error.what());
  }
  std::vector<std::string> results = gather_texts(group, mine);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const char first = results[rank].front();
    results[rank].erase(0, 1);
    if (first != kDone) {
      throw_error(static_cast<ErrorKind>(first - kDone - 1), "[rank ", rank, "] ", results[rank]);
    }
  }
  return results;
}

}  // namespace kinora::checkpoint
