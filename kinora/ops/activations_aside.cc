#include "kinora/ops/activations_aside.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/rounding.h"
#include "kinora/device/host_memory.h"
#include "kinora/ops/fp8_codes.h"

namespace kinora::ops {
namespace {

// Large enough for the bus's full speed, small enough that what the last one leaves does not
// matter.
constexpr int64_t kChunk = int64_t{16} << 20;
// Of places in a chunk: an address that suits every copy.
constexpr int64_t kAlignment = 256;
// Copies of less would cost more than they give back.
constexpr int64_t kLeast = 256;
// Blocks that are on the link at once.
constexpr size_t kUnderWay = 2;

const void* memory_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// All bytes of the memory in which a tensor lies.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const auto size = static_cast<int64_t>(tensor.storage().nbytes());
  return at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {size}, {1});
}

/// What tensors name of a memory.
struct Cover {
  int64_t bytes = 0;
  at::ScalarType type = at::kByte;  // of all; else kByte
};

std::unordered_map<const void*, Cover> covers_of(std::span<at::Tensor* const> tensors) {
  std::unordered_map<const void*, Cover> covers;
  for (const at::Tensor* tensor : tensors) {
    if (tensor->defined()) {
      const auto [entry, is_new] =
          covers.try_emplace(memory_of(*tensor), Cover{.type = tensor->scalar_type()});
      Cover& cover = entry->second;
      cover.bytes += static_cast<int64_t>(tensor->nbytes());
      cover.type = cover.type == tensor->scalar_type() ? cover.type : at::kByte;
    }
  }
  return covers;
}

}  // namespace

HostActivations::HostActivations(const at::Device& device)
    : device_(device), link_(device, /*num_marks=*/kUnderWay) {}

int64_t HostActivations::num_bytes() const {
  return num_chunks_ * kChunk;
}

std::vector<bool> spread_evenly(const std::vector<bool>& may, int64_t count) {
  const int64_t all = std::ranges::count(may, true);
  count = std::min(count, all);
  std::vector<bool> taken(may.size(), false);
  int64_t number = 0;  // among those that may
  for (size_t i = 0; i < may.size(); ++i) {
    if (may[i]) {
      taken[i] = number++ * count % all < count;
    }
  }
  return taken;
}

std::vector<bool> first_others(const std::vector<bool>& taken, int64_t count) {
  std::vector<bool> first(taken.size(), false);
  for (size_t i = 0; i < taken.size() && count > 0; ++i) {
    first[i] = !taken[i];
    count -= taken[i] ? 0 : 1;
  }
  return first;
}

ActivationsAside::ActivationsAside(std::shared_ptr<HostActivations> host, size_t num_blocks)
    : host_(std::move(host)), blocks_(num_blocks) {}

ActivationsAside::~ActivationsAside() {
  if (!under_way_.empty()) {  // after an error: the memory that is copied from or to is freed now
    try {
      host_->link_.wait_for_all();
    } catch (const Error& error) {
      log_warn("[block_stack] ", error.what());
    }
  }
  if (host_ != nullptr) {
    host_->free_.insert(host_->free_.end(), chunks_.begin(), chunks_.end());
  }
}

std::vector<at::Tensor> ActivationsAside::places_for(int64_t bytes) {
  std::vector<at::Tensor> places;
  while (bytes > 0) {
    if (chunks_.empty() || used_ == kChunk) {
      if (host_->free_.empty()) {
        host_->free_.push_back(device::zeros_in_host_memory(kChunk, at::kByte, host_->device_));
        ++host_->num_chunks_;
      }
      chunks_.push_back(std::move(host_->free_.back()));
      host_->free_.pop_back();
      used_ = 0;
    }
    const int64_t count = std::min(bytes, kChunk - used_);
    places.push_back(chunks_.back().narrow(0, used_, count));
    used_ = std::min(round_up(used_ + count, kAlignment), kChunk);
    bytes -= count;
  }
  return places;
}

void ActivationsAside::put(size_t block, std::span<at::Tensor* const> tensors,
                           std::span<const at::Tensor> fixed, Place place) {
  if (place.at_host) {
    finish_putting(kUnderWay - 1);
  }
  const std::unordered_map<const void*, Cover> covers = covers_of(tensors);
  std::unordered_set<const void*> left;
  for (const at::Tensor& tensor : fixed) {
    if (tensor.defined()) {
      left.insert(memory_of(tensor));
    }
  }
  Block& own = blocks_[block];
  own.at_host = place.at_host;
  std::unordered_map<const void*, size_t> numbers;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined() || left.contains(memory_of(*tensor))) {
      continue;
    }
    const auto size = static_cast<int64_t>(tensor->storage().nbytes());
    const Cover& cover = covers.at(memory_of(*tensor));
    if (size < kLeast || 2 * cover.bytes < size) {
      continue;
    }
    // Numbers that nobody has named may be anything, and would take part in a factor.
    const bool is_coded = place.in_fp8 && cover.bytes >= size && can_be_coded(cover.type, size);
    if (!is_coded && !place.at_host) {
      continue;
    }
    const auto [number, is_new] = numbers.try_emplace(memory_of(*tensor), own.storages.size());
    if (is_new) {
      Storage storage;
      storage.bytes = bytes_of(*tensor);
      if (is_coded) {
        storage.coded = cover.type;
        storage.bytes = fp8_coded(storage.bytes.view(cover.type));
      }
      storage.size = storage.bytes.numel();
      own.storages.push_back(std::move(storage));
    }
    own.tensors.push_back({.tensor = tensor,
                           .options = tensor->options(),
                           .sizes = tensor->sizes().vec(),
                           .strides = tensor->strides().vec(),
                           .offset = tensor->storage_offset(),
                           .storage = number->second});
  }
  for (const Taken& taken : own.tensors) {
    *taken.tensor = at::Tensor();
  }
  if (place.at_host && !own.tensors.empty()) {
    begin_to_send(own);
  }
}

void ActivationsAside::travel(Block& block, void (*copy)(const at::Tensor& on_device,
                                                         const at::Tensor& at_host)) {
  // No two that are under way have the same.
  const size_t mark = under_way_.empty() ? 0 : (under_way_.back().mark + 1) % kUnderWay;
  under_way_.push_back({.block = &block, .mark = mark});
  host_->link_.run([&] {
    for (const Storage& storage : block.storages) {
      int64_t begin = 0;
      for (const at::Tensor& place : storage.places) {
        copy(storage.bytes.narrow(0, begin, place.numel()), place);
        begin += place.numel();
      }
    }
    host_->link_.mark(mark);
  });
}

ActivationsAside::Block& ActivationsAside::wait_for_first() {
  const Travel first = under_way_.front();
  host_->link_.wait(first.mark);
  under_way_.pop_front();
  return *first.block;
}

void ActivationsAside::begin_to_send(Block& block) {
  for (Storage& storage : block.storages) {
    storage.places = places_for(storage.size);
  }
  travel(block, [](const at::Tensor& on_device, const at::Tensor& at_host) {
    device::copy_bytes(on_device, at_host);
  });
}

void ActivationsAside::finish_putting(size_t most) {
  while (under_way_.size() > most) {
    for (Storage& storage : wait_for_first().storages) {
      storage.bytes = at::Tensor();
    }
  }
}

void ActivationsAside::fetch(size_t block) {
  Block& own = blocks_[block];
  if (!under_way_.empty() && under_way_.front().block == &own) {
    (void)wait_for_first();
  }
  for (Storage& storage : own.storages) {
    if (storage.coded != at::kByte) {
      storage.bytes = fp8_decoded(storage.bytes, storage.coded);
    }
  }
  for (const Taken& taken : own.tensors) {
    const at::Tensor& bytes = own.storages[taken.storage].bytes;
    *taken.tensor = at::empty({0}, taken.options)
                        .set_(bytes.storage(), taken.offset, taken.sizes, taken.strides);
  }
  own = {};
  for (size_t i = 1; i <= std::min(block, kUnderWay); ++i) {
    Block& before = blocks_[block - i];
    const bool has_begun =
        std::ranges::find(under_way_, &before, &Travel::block) != under_way_.end();
    if (before.at_host && !before.tensors.empty() && !has_begun) {
      begin_to_fetch(before);
    }
  }
}

void ActivationsAside::begin_to_fetch(Block& block) {
  // The memory is the current stream's, which waits before it uses or frees it.
  for (Storage& storage : block.storages) {
    storage.bytes = at::empty({storage.size}, at::TensorOptions(host_->device_).dtype(at::kByte));
  }
  travel(block, [](const at::Tensor& on_device, const at::Tensor& at_host) {
    device::copy_bytes(at_host, on_device);
  });
}

}  // namespace kinora::ops
