#include "kinora/device/side_stream.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"

namespace kinora::device {
namespace {

class Event {
 public:
  Event() { KINORA_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(Event&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)), recording_(other.recording_) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) {
      (void)cudaEventDestroy(event_);
    }
  }

  void record(cudaStream_t stream) {
    KINORA_CUDA_CHECK(cudaEventRecord(event_, stream));
    recording_ = recording_of(stream);
  }
  /// `stream` waits, and what it is given belongs to the same graph then, if it was recorded in
  /// one.
  void start(cudaStream_t stream) const {
    KINORA_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault));
  }
  void wait(cudaStream_t stream) const {
    // What was given outside of a graph is awaited by each of its replays; within, it is a part of
    // it.
    const bool is_outside = recording_of(stream) != recording_;
    KINORA_CHECK(!is_outside || recording_ == 0, kInternal,
                 "[device] a graph's work is awaited outside of it");
    KINORA_CUDA_CHECK(cudaStreamWaitEvent(
        stream, event_, is_outside ? cudaEventWaitExternal : cudaEventWaitDefault));
  }

 private:
  /// The graph that the stream's work is recorded in; 0: none.
  static unsigned long long recording_of(cudaStream_t stream) {  // NOLINT(google-runtime-int)
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;  // NOLINT(google-runtime-int): CUDA's
    KINORA_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &id));
    return status == cudaStreamCaptureStatusNone ? 0 : id;
  }

  cudaEvent_t event_ = nullptr;
  unsigned long long recording_ = 0;  // NOLINT(google-runtime-int): where it was recorded
};

}  // namespace

struct SideStream::Impl {
  explicit Impl(c10::Device device, size_t num_marks)
      : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        marks(num_marks) {
    done.record(stream);
    for (Event& mark : marks) {
      mark.record(stream);
    }
  }

  c10::cuda::CUDAStream stream;
  Event begin;
  Event done;
  std::vector<Event> marks;
};

SideStream::SideStream(c10::Device device, size_t num_marks) {
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device);
    impl_ = std::make_unique<Impl>(device, num_marks);
  }
}
SideStream::~SideStream() = default;

void SideStream::run(const std::function<void()>& work) {
  if (impl_ == nullptr) {
    work();
    return;
  }
  impl_->begin.record(c10::cuda::getCurrentCUDAStream(impl_->stream.device_index()));
  impl_->begin.start(impl_->stream);
  {
    const c10::cuda::CUDAStreamGuard guard(impl_->stream);
    work();
  }
  impl_->done.record(impl_->stream);
}

void SideStream::mark(size_t i) {
  if (impl_ != nullptr) {
    impl_->marks[i].record(impl_->stream);
  }
}

void SideStream::wait(size_t i) const {
  if (impl_ != nullptr) {
    impl_->marks[i].wait(c10::cuda::getCurrentCUDAStream(impl_->stream.device_index()));
  }
}

void SideStream::wait_for_all() const {
  if (impl_ != nullptr) {
    impl_->done.wait(c10::cuda::getCurrentCUDAStream(impl_->stream.device_index()));
  }
}

}  // namespace kinora::device
