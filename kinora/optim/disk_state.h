#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kinora/io/scratch_file.h"
#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

/// Memory on io::ScratchFile::kAlignment.
struct AlignedFree {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte[], AlignedFree>;
[[nodiscard]] AlignedMemory aligned_memory(int64_t bytes);

/// The part of an arena's state that lies in a file (ArenaOptions::disk). Its tensors are names of
/// bytes of the file: nothing lies at their addresses, and who touches them ends the process; they
/// can be narrowed, and given to read() and write(). All that is asked for is done in order, by a
/// thread of its own. kIo from then on where one of it fails.
class DiskState {
 public:
  /// Bytes of the file that `numel` elements take.
  [[nodiscard]] static int64_t room_for(int64_t numel, at::ScalarType type);

  /// kIo where the folder has no room for `bytes`.
  DiskState(const std::filesystem::path& folder, int64_t bytes);
  DiskState(const DiskState&) = delete;
  DiskState& operator=(const DiskState&) = delete;
  /// Waits for what was asked for.
  ~DiskState();

  /// The next room_for(numel, type) bytes, zeros.
  [[nodiscard]] at::Tensor place(int64_t numel, at::ScalarType type);
  /// Whether `values` are, or are a part of, what place() gave.
  [[nodiscard]] bool holds(const at::Tensor& values) const;

  /// Contiguous parts of what place() gave. Threads may call them at once. read: into as many bytes
  /// at `out`. write: `values` of the same type on the CPU.
  void read(const at::Tensor& state, void* out);
  [[nodiscard]] at::Tensor read(const at::Tensor& state);
  void write(const at::Tensor& state, const at::Tensor& values);
  /// How many calls of write() there were.
  [[nodiscard]] int64_t num_written() const;

  /// Asks for the bytes of a contiguous part, whole pages, to come to memory or to go from there,
  /// which must stay until wait(number) has returned.
  [[nodiscard]] io::ScratchFile::Piece piece(const at::Tensor& state, std::byte* memory) const;
  int64_t start(std::vector<io::ScratchFile::Piece> pieces, bool writes);
  void wait(int64_t number);

  [[nodiscard]] int64_t size() const { return file_.size(); }
  /// Reads and writes again what is there, at most 256 MiB, and says how fast that was, and what a
  /// step takes by it.
  [[nodiscard]] std::string measure();

 private:
  struct Request {
    std::vector<io::ScratchFile::Piece> pieces;
    bool writes;
  };

  [[nodiscard]] int64_t offset_of(const at::Tensor& state) const;
  void serve();

  io::ScratchFile file_;
  std::byte* addresses_ = nullptr;  // of the file's bytes, without memory
  int64_t used_ = 0;                // bytes that place() has given
  std::mutex write_mutex_;          // of write(): neighbours share pages
  mutable std::mutex mutex_;        // of all below
  std::condition_variable changed_;
  std::deque<Request> requests_;
  int64_t asked_ = 0;
  int64_t done_ = 0;
  int64_t num_written_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Updates of state that lies in a file: pieces of buckets take turns in a few rooms in memory.
/// While one is updated, the next ones are read and the last ones written; the first ones of the
/// next step are read while that step computes.
class DiskUpdates {
 public:
  /// Elements of a piece: of all arrays whole pages.
  static constexpr int64_t kPiece = int64_t{1} << 20;
  /// Pieces in memory at once.
  static constexpr size_t kRooms = 4;

  /// memory: bytes of all rooms.
  DiskUpdates(DiskState& disk, int64_t memory);

  /// The piece of a bucket whose turn it is after those added before, with the arrays that lie in
  /// the file replaced by their place in memory.
  [[nodiscard]] ops::OptimizerBucket stage(const ops::OptimizerBucket& piece);
  /// What updates it.
  void add(ops::BucketTable table) { pieces_.back().table = std::move(table); }

  DiskUpdates(const DiskUpdates&) = delete;
  DiskUpdates& operator=(const DiskUpdates&) = delete;
  /// Waits for what is under way.
  ~DiskUpdates();

  /// A step over all pieces.
  void run(const kernels::UpdateParameters& parameters, const at::Tensor& control);
  /// Of it piece i: of each step all, in turn.
  void update(size_t i, const kernels::UpdateParameters& parameters, const at::Tensor& control);

 private:
  struct Piece {
    std::vector<io::ScratchFile::Piece> bytes;
    ops::BucketTable table;
    int64_t there = 0;  // the number of the request after which it may be updated
  };

  void read(size_t piece);

  DiskState& disk_;
  int64_t room_;
  AlignedMemory memory_;
  std::vector<Piece> pieces_;
  int64_t seen_written_ = -1;  // DiskState::num_written() of what lies in memory
};

}  // namespace kinora::optim
