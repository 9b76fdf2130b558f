#include "kinora/optim/disk_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"

namespace kinora::optim {
namespace {

constexpr int64_t kPage = io::ScratchFile::kAlignment;
constexpr int64_t kMeasuredBytes = int64_t{256} << 20;
constexpr int64_t kMeasuredAtOnce = int64_t{16} << 20;

int64_t page_begin(int64_t offset) {
  return offset / kPage * kPage;
}

int64_t page_end(int64_t offset) {
  return round_up(offset, kPage);
}

/// The arrays of a piece that may lie in a file.
std::vector<at::Tensor*> arrays_of(ops::OptimizerBucket& piece) {
  std::vector<at::Tensor*> arrays = {&piece.master, &piece.exp_avg, &piece.exp_avg_sq,
                                     &piece.exp_avg_scales, &piece.exp_avg_sq_scales};
  for (at::Tensor& average : piece.ema) {
    arrays.push_back(&average);
  }
  return arrays;
}

}  // namespace

AlignedMemory aligned_memory(int64_t bytes) {
  return AlignedMemory(
      static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(page_end(bytes)))));
}

int64_t DiskState::room_for(int64_t numel, at::ScalarType type) {
  return page_end(numel * static_cast<int64_t>(c10::elementSize(type)));
}

DiskState::DiskState(const std::filesystem::path& folder, int64_t bytes) : file_(folder, bytes) {
  void* addresses = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KINORA_CHECK(addresses != MAP_FAILED, kMemory, "[disk] ", human_bytes(bytes),
               " of addresses are not to be had");
  addresses_ = static_cast<std::byte*>(addresses);
  thread_ = std::thread([this] { serve(); });
}

DiskState::~DiskState() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ::munmap(addresses_, static_cast<size_t>(file_.size()));
}

at::Tensor DiskState::place(int64_t numel, at::ScalarType type) {
  const int64_t room = room_for(numel, type);
  KINORA_CHECK(room <= file_.size() - used_, kInternal, "[disk] the file has ", file_.size(),
               " bytes, of which ", used_, " are taken, and cannot take ", room, " more");
  const at::Tensor state = at::from_blob(addresses_ + used_, {numel}, at::TensorOptions(type));
  used_ += room;
  return state;
}

bool DiskState::holds(const at::Tensor& values) const {
  if (!values.defined() || !values.is_cpu()) {
    return false;
  }
  const auto* address = static_cast<const std::byte*>(values.const_data_ptr());
  return address >= addresses_ && address < addresses_ + file_.size();
}

int64_t DiskState::offset_of(const at::Tensor& state) const {
  KINORA_CHECK(holds(state) && state.is_contiguous(), kInternal,
               "[disk] must be a contiguous part of what lies in the file");
  return static_cast<const std::byte*>(state.const_data_ptr()) - addresses_;
}

void DiskState::read(const at::Tensor& state, void* out) {
  const auto bytes = static_cast<int64_t>(state.nbytes());
  if (bytes == 0) {
    return;
  }
  const int64_t offset = offset_of(state);
  const int64_t begin = page_begin(offset);
  const int64_t end = page_end(offset + bytes);
  const AlignedMemory memory = aligned_memory(end - begin);
  wait(start({{begin, memory.get(), end - begin}}, false));
  std::memcpy(out, memory.get() + (offset - begin), static_cast<size_t>(bytes));
}

at::Tensor DiskState::read(const at::Tensor& state) {
  at::Tensor values = at::empty(state.sizes(), state.options());
  read(state, values.mutable_data_ptr());
  return values;
}

void DiskState::write(const at::Tensor& state, const at::Tensor& values) {
  KINORA_CHECK(values.scalar_type() == state.scalar_type() && values.numel() == state.numel() &&
                   values.is_cpu(),
               kInternal, "[disk] must be written ", state.numel(), " elements of ",
               state.scalar_type(), ", got ", values.numel(), " of ", values.scalar_type());
  const auto bytes = static_cast<int64_t>(state.nbytes());
  if (bytes == 0) {
    return;
  }
  const at::Tensor source = values.contiguous();
  const int64_t offset = offset_of(state);
  const int64_t begin = page_begin(offset);
  const int64_t end = page_end(offset + bytes);
  const AlignedMemory memory = aligned_memory(end - begin);
  const std::scoped_lock lock(write_mutex_);
  if (begin < offset) {
    wait(start({{begin, memory.get(), kPage}}, false));
  }
  if (offset + bytes < end && (begin == offset || end - begin > kPage)) {
    wait(start({{end - kPage, memory.get() + (end - kPage - begin), kPage}}, false));
  }
  std::memcpy(memory.get() + (offset - begin), source.const_data_ptr(), static_cast<size_t>(bytes));
  wait(start({{begin, memory.get(), end - begin}}, true));
  const std::scoped_lock count_lock(mutex_);
  ++num_written_;
}

int64_t DiskState::num_written() const {
  const std::scoped_lock lock(mutex_);
  return num_written_;
}

io::ScratchFile::Piece DiskState::piece(const at::Tensor& state, std::byte* memory) const {
  return {offset_of(state), memory, room_for(state.numel(), state.scalar_type())};
}

int64_t DiskState::start(std::vector<io::ScratchFile::Piece> pieces, bool writes) {
  int64_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    requests_.push_back({std::move(pieces), writes});
    number = ++asked_;
  }
  changed_.notify_all();
  return number;
}

void DiskState::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || error_; });
  if (error_) {
    std::rethrow_exception(error_);
  }
}

void DiskState::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || (!requests_.empty() && !error_); });
    if (requests_.empty() || error_) {
      return;
    }
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      request.writes ? file_.write(request.pieces) : file_.read(request.pieces);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    ++done_;
    changed_.notify_all();
  }
}

std::string DiskState::measure() {
  const int64_t bytes = std::min(kMeasuredBytes, file_.size());
  const AlignedMemory memory = aligned_memory(bytes);
  std::vector<io::ScratchFile::Piece> pieces;
  for (int64_t offset = 0; offset < bytes; offset += kMeasuredAtOnce) {
    pieces.push_back({offset, memory.get() + offset, std::min(kMeasuredAtOnce, bytes - offset)});
  }
  const auto speed = [&](bool writes) {  // bytes a second
    const auto begin = std::chrono::steady_clock::now();
    int64_t last = 0;
    for (const io::ScratchFile::Piece& piece : pieces) {
      last = start({piece}, writes);
    }
    wait(last);
    return static_cast<double>(bytes) / seconds_since(begin);
  };
  const double reads = speed(false);
  const double writes = speed(true);
  const double size = static_cast<double>(file_.size());
  std::ostringstream text;
  text << human_bytes(file_.size()) << " of the optimizer's state lie in "
       << file_.folder().string() << " (" << file_.describe() << "): it reads "
       << human_rate(reads / 1e9) << " GB/s and writes " << human_rate(writes / 1e9)
       << " GB/s, so that a step moves them in " << human_duration(size / reads + size / writes)
       << ", less what is read and written while it computes";
  return text.str();
}

DiskUpdates::DiskUpdates(DiskState& disk, int64_t memory)
    : disk_(disk), room_(memory / static_cast<int64_t>(kRooms)), memory_(aligned_memory(memory)) {}

DiskUpdates::~DiskUpdates() {
  try {
    for (const Piece& piece : pieces_) {
      disk_.wait(piece.there);
    }
  } catch (...) {
    // Nothing is read or written any more.
  }
}

ops::OptimizerBucket DiskUpdates::stage(const ops::OptimizerBucket& piece) {
  std::byte* memory = memory_.get() + room_ * static_cast<int64_t>(pieces_.size() % kRooms);
  Piece& added = pieces_.emplace_back();
  ops::OptimizerBucket staged = piece;
  for (at::Tensor* array : arrays_of(staged)) {
    if (disk_.holds(*array)) {
      added.bytes.push_back(disk_.piece(*array, memory));
      *array = at::from_blob(memory, array->sizes(), array->options());
      memory += added.bytes.back().bytes;
    }
  }
  return staged;
}

void DiskUpdates::read(size_t piece) {
  pieces_[piece].there = disk_.start(pieces_[piece].bytes, false);
}

void DiskUpdates::run(const kernels::UpdateParameters& parameters, const at::Tensor& control) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    update(i, parameters, control);
  }
}

void DiskUpdates::update(size_t i, const kernels::UpdateParameters& parameters,
                         const at::Tensor& control) {
  if (const int64_t written = disk_.num_written(); i == 0 && seen_written_ != written) {
    for (size_t k = 0; k < std::min(kRooms, pieces_.size()); ++k) {
      read(k);
    }
    seen_written_ = written;
  }
  disk_.wait(pieces_[i].there);
  ops::update_weights(pieces_[i].table, parameters, control);
  pieces_[i].there = disk_.start(pieces_[i].bytes, true);
  // Whose turn it is in this room: of this step, or the next one's first.
  const size_t next = i + kRooms < pieces_.size() ? i + kRooms : i % kRooms;
  if (next != i) {
    read(next);
  }
}

}  // namespace kinora::optim
