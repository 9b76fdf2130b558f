// Damaged files for our own parsers: the same ones in every run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>

#include "kinora/core/error.h"
#include "tests/fuzz/targets.h"

namespace kinora::fuzz {
namespace mutations_test {

// What parsers trip over.
constexpr uint64_t kOddNumbers[] = {0,
                                    1,
                                    0x7F,
                                    0xFF,
                                    0x7FFF,
                                    0xFFFF,
                                    0x7FFFFFFF,
                                    0xFFFFFFFF,
                                    0x7FFFFFFFFFFFFFFF,
                                    0xFFFFFFFFFFFFFFFF};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // One to four changes.
  void change(Bytes& bytes, const Bytes& other) {
    for (uint64_t count = 1 + below(4); count > 0; --count) {
      change_once(bytes, other);
    }
  }

 private:
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void change_once(Bytes& bytes, const Bytes& other) {
    const uint64_t at = below(bytes.size());
    const uint64_t size = below(std::min<uint64_t>(bytes.size() - at, 64));
    const auto begin = bytes.begin() + static_cast<int64_t>(at);
    switch (below(7)) {
      case 0:  // a bit
        if (!bytes.empty()) {
          bytes[at] ^= static_cast<std::byte>(1U << below(8));
        }
        break;
      case 1:  // a byte
        if (!bytes.empty()) {
          bytes[at] = static_cast<std::byte>(below(256));
        }
        break;
      case 2:  // the end cut off
        bytes.resize(at);
        break;
      case 3:  // a piece left out
        bytes.erase(begin, begin + static_cast<int64_t>(size));
        break;
      case 4: {  // a piece twice
        const Bytes piece(begin, begin + static_cast<int64_t>(size));
        bytes.insert(begin, piece.begin(), piece.end());
        break;
      }
      case 5: {  // a piece of another file
        const uint64_t from = below(other.size());
        const auto piece = other.begin() + static_cast<int64_t>(from);
        const auto length =
            static_cast<int64_t>(below(std::min<uint64_t>(other.size() - from, 64)));
        bytes.insert(begin, piece, piece + length);
        break;
      }
      default: {  // an odd number
        const uint64_t number = kOddNumbers[below(std::size(kOddNumbers))];
        for (uint64_t i = 0; i < uint64_t{1} << below(4) && at + i < bytes.size(); ++i) {
          bytes[at + i] = static_cast<std::byte>(number >> (8 * i));
        }
        break;
      }
    }
  }

  std::mt19937_64 random_;
};

class MutationsTest : public ::testing::TestWithParam<size_t> {
 protected:
  Target target_ = targets()[GetParam()];
};

TEST_P(MutationsTest, WholeFilesAreRead) {
  for (const Bytes& seed : target_.seeds) {
    EXPECT_NO_THROW(target_.parse(seed));
  }
}

TEST_P(MutationsTest, DamageNeverCrashes) {
  constexpr int kRounds = 1000;  // libfuzzer.cc goes on for as long as one likes
  for (int round = 0; round < kRounds; ++round) {
    Mutator mutator(static_cast<uint64_t>(round));
    const size_t num_seeds = target_.seeds.size();
    Bytes bytes = target_.seeds[static_cast<size_t>(round) % num_seeds];
    mutator.change(bytes, target_.seeds[static_cast<size_t>(round + 1) % num_seeds]);
    if (round % 2 == 1 && target_.repair) {
      target_.repair(bytes);
    }
    try {
      target_.parse(bytes);
    } catch (const Error& error) {
      ASSERT_NE(error.kind(), ErrorKind::kInternal) << "round " << round << ": " << error.what();
    } catch (const std::exception& error) {
      FAIL() << "round " << round << ": " << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parsers, MutationsTest, ::testing::Range(size_t{0}, targets().size()),
                         [](const auto& info) { return targets()[info.param].name; });

}  // namespace mutations_test
}  // namespace kinora::fuzz
