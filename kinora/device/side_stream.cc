#include "kinora/device/side_stream.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "kinora/core/cuda.h"

namespace kinora::device {
namespace {

class Event {
 public:
  Event() { KINORA_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != nullptr) {
      (void)cudaEventDestroy(event_);
    }
  }

  void record(cudaStream_t stream) const { KINORA_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    KINORA_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    const bool is_recorded = status != cudaStreamCaptureStatusNone;
    KINORA_CUDA_CHECK(cudaStreamWaitEvent(
        stream, event_, is_recorded ? cudaEventWaitExternal : cudaEventWaitDefault));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct SideStream::Impl {
  explicit Impl(c10::Device device, size_t num_marks)
      : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        marks(num_marks) {
    done.record(stream);
    for (const Event& mark : marks) {
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
  impl_->begin.wait(impl_->stream);
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
