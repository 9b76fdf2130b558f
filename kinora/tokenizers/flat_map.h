#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kinora::tokenizers {

/// A map of 64-bit keys to 64-bit values in one array (open addressing, linear probing, at most
/// half full): a look-up is mostly one cache line. Merges of pairs and tries of bytes live on it.
class FlatMap {
 public:
  explicit FlatMap(size_t num_expected = 0)
      : slots_(std::bit_ceil(2 * num_expected + 16)), mask_(slots_.size() - 1) {}

  /// `key` must not be 2^64 - 1. A key that is there gets the new value.
  void set(uint64_t key, uint64_t value) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    Slot& slot = slots_[slot_of(key)];
    size_ += slot.key == kNoKey ? 1 : 0;
    slot = {key, value};
  }

  /// The value of `key`; null if there is none. Valid until the next set().
  [[nodiscard]] const uint64_t* find(uint64_t key) const {
    const Slot& slot = slots_[slot_of(key)];
    return slot.key == kNoKey ? nullptr : &slot.value;
  }

  [[nodiscard]] size_t size() const { return size_; }

 private:
  static constexpr uint64_t kNoKey = ~uint64_t{0};
  struct Slot {
    uint64_t key = kNoKey;
    uint64_t value = 0;
  };

  /// Where `key` is, or the empty slot where it would go.
  [[nodiscard]] size_t slot_of(uint64_t key) const {
    uint64_t hash = key * 0x9E3779B97F4A7C15ULL;  // Fibonacci hashing, Knuth, vol. 3, 6.4
    hash ^= hash >> 32;
    size_t at = hash & mask_;
    while (slots_[at].key != key && slots_[at].key != kNoKey) {
      at = (at + 1) & mask_;
    }
    return at;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.key != kNoKey) {
        slots_[slot_of(slot.key)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  size_t mask_;
  size_t size_ = 0;
};

}  // namespace kinora::tokenizers
