#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kinora/device/side_stream.h"

namespace kinora::ops {

/// Memory of the host for what forward keeps for backward: page-locked beside a GPU. It is taken
/// when a pass first needs it, stays as long as this, and is given to one pass after the other, so
/// that the first step takes all of it. Bytes go over the link on a stream of its own.
class HostActivations {
 public:
  explicit HostActivations(const at::Device& device);

  /// All that was taken.
  [[nodiscard]] int64_t num_bytes() const;

 private:
  friend class ActivationsAside;

  at::Device device_;
  device::SideStream link_;
  std::vector<at::Tensor> free_;  // uint8 [kChunk] each
  int64_t num_chunks_ = 0;
};

/// Which blocks' activations go to the host: `count` of those that may, spread evenly over them
/// with the first one, so that the link has the time of all blocks. All of them where there are
/// fewer.
[[nodiscard]] std::vector<bool> spread_evenly(const std::vector<bool>& may, int64_t count);

/// The first `count` blocks of those that are not `taken`.
[[nodiscard]] std::vector<bool> first_others(const std::vector<bool>& taken, int64_t count);

/// What the blocks of one pass keep while others compute: in the host's memory, in 8 bits, or both.
/// As it was computed are on the device: what the block keeps that computes, and of the host's what
/// of two other blocks is on its way, so that one may take longer than a block computes. The host
/// never waits, and a CUDA graph of a whole pass can hold all of it. On a CPU everything is copied
/// at once.
///
/// In 8 bits a number of 16 is E4M3 times a factor of its own for each 128
/// (kernels::BlockQuantise): what comes back is near to what was there. Numbers of other sizes stay
/// as they are.
class ActivationsAside {
 public:
  struct Place {
    bool at_host = false;
    bool in_fp8 = false;

    [[nodiscard]] bool is_elsewhere() const { return at_host || in_fp8; }
  };

  /// host: null: nothing goes there.
  ActivationsAside(std::shared_ptr<HostActivations> host, size_t num_blocks);
  ActivationsAside(const ActivationsAside&) = delete;
  ActivationsAside& operator=(const ActivationsAside&) = delete;
  /// Gives its memory back.
  ~ActivationsAside();

  /// Behind a block's forward: takes what `tensors` name, which must stay as it is. Left alone are
  /// undefined ones, those in the memory of `fixed`, and small parts of what is larger, which
  /// somebody else has. Beside what goes to the host that of one other block may be on its way
  /// there: the current stream waits for what was put before, and its memory is free then.
  void put(size_t block, std::span<at::Tensor* const> tensors, std::span<const at::Tensor> fixed,
           Place place);
  /// The current stream waits until all that was put is there; its memory is free then.
  void finish_putting() { finish_putting(0); }
  /// Before a block's backward, behind finish_putting(): its tensors are back, unless it was not
  /// put aside, and those of the two blocks before begin to come.
  void fetch(size_t block);

 private:
  /// The memory of some tensors.
  struct Storage {
    at::Tensor bytes;                  ///< uint8, on the device; undefined while it is not there
    int64_t size = 0;                  ///< of `bytes`
    std::vector<at::Tensor> places;    ///< uint8, the host's, one behind the other; none: here
    at::ScalarType coded = at::kByte;  ///< of what is in 8 bits there, else kByte
  };
  /// A tensor that was taken.
  struct Taken {
    at::Tensor* tensor;
    at::TensorOptions options;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset = 0;
    size_t storage = 0;
  };
  struct Block {
    std::vector<Storage> storages;
    std::vector<Taken> tensors;
    bool at_host = false;
  };
  /// What is on the link, and the mark there behind it.
  struct Travel {
    Block* block;  ///< of blocks_
    size_t mark;
  };

  [[nodiscard]] std::vector<at::Tensor> places_for(int64_t bytes);
  /// All but the last `most` that were put.
  void finish_putting(size_t most);
  void begin_to_send(Block& block);
  void begin_to_fetch(Block& block);
  /// Has the link copy what the block has, from one place to another.
  void travel(Block& block, void (*copy)(const at::Tensor& on_device, const at::Tensor& at_host));
  /// The current stream waits for what began first.
  Block& wait_for_first();

  std::shared_ptr<HostActivations> host_;
  std::vector<Block> blocks_;
  std::vector<at::Tensor> chunks_;
  int64_t used_ = 0;              // bytes of the last chunk
  std::deque<Travel> under_way_;  // in the order in which they began
};

}  // namespace kinora::ops
