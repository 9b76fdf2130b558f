#include "kinora/data/epoch_order.h"

#include <limits>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"

namespace kinora::data {
namespace {

// Fisher and Yates' shuffle (Knuth, TAOCP 2, 3.4.2, algorithm P) of 0 ... size - 1.
void random_permutation(const RandomStream& stream, std::vector<uint32_t>& order) {
  std::iota(order.begin(), order.end(), 0U);
  PhiloxBlock block{};
  for (size_t last = order.size(); last > 1; --last) {
    const size_t element = order.size() - last;
    if (element % 4 == 0) {
      block = philox(stream, static_cast<uint32_t>(element / 4));
    }
    const uint64_t drawn = (static_cast<uint64_t>(block.word[element % 4]) * last) >> 32;
    std::swap(order[last - 1], order[static_cast<size_t>(drawn)]);
  }
}

}  // namespace

EpochOrder::EpochOrder(int64_t count, uint64_t seed) : seed_(seed) {
  KINORA_CHECK(count >= 1 && count <= std::numeric_limits<uint32_t>::max(), kConfig,
               "[data] a set must hold from 1 to 2^32 - 1 samples, got ", count);
  order_.resize(static_cast<size_t>(count));
}

void EpochOrder::shuffle(int64_t epoch) {
  if (epoch == epoch_) {
    return;
  }
  const RandomStream stream{seed_, static_cast<uint64_t>(epoch), kEpochStep,
                            RandomPurpose::kDataOrder};
  random_permutation(stream, order_);
  epoch_ = epoch;
}

int64_t EpochOrder::at(int64_t position) {
  return replacement(position, 0);
}

int64_t EpochOrder::replacement(int64_t position, int64_t attempt) {
  const auto count = static_cast<int64_t>(order_.size());
  shuffle(position / count);
  return order_[static_cast<size_t>((position % count + attempt) % count)];
}

Split split(int64_t count, int64_t validation_count, uint64_t seed) {
  KINORA_CHECK(
      validation_count >= 0 && validation_count <= count - 2, kConfig,
      "[data] the samples held out for validation must leave at least 2 for training, got ",
      validation_count, " of ", count, ". Hint: lower data.validation.");
  KINORA_CHECK(count <= std::numeric_limits<uint32_t>::max(), kConfig,
               "[data] a set must hold at most 2^32 - 1 samples, got ", count);
  std::vector<uint32_t> order(static_cast<size_t>(count));
  random_permutation({seed, 0, kSplitStep, RandomPurpose::kDataOrder}, order);
  std::vector<bool> held_out(order.size());
  for (int64_t i = 0; i < validation_count; ++i) {
    held_out[order[static_cast<size_t>(i)]] = true;
  }
  Split parts;
  parts.train.reserve(static_cast<size_t>(count - validation_count));
  parts.validation.reserve(static_cast<size_t>(validation_count));
  for (int64_t i = 0; i < count; ++i) {
    (held_out[static_cast<size_t>(i)] ? parts.validation : parts.train).push_back(i);
  }
  return parts;
}

}  // namespace kinora::data
