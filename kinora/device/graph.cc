#include "kinora/device/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/error.h"

namespace kinora::device {

struct Graph::Impl {
  at::cuda::CUDAGraph graph;
  bool recorded = false;
};

Graph::Graph() : impl_(std::make_unique<Impl>()) {}
Graph::~Graph() = default;

void Graph::record(const std::function<void()>& work) {
  KINORA_CHECK(!impl_->recorded, kInternal, "[graph] is recorded already");
  const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
  before.synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  try {
    const c10::cuda::CUDAStreamGuard guard(side);
    impl_->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    work();
    impl_->graph.capture_end();
  } catch (const c10::Error& error) {
    throw_error(ErrorKind::kCuda, "[graph] the step could not be recorded as a CUDA graph: ",
                error.what_without_backtrace(), ". Hint: kernels.graphs=off runs without");
  }
  impl_->recorded = true;
}

bool Graph::is_recorded() const {
  return impl_->recorded;
}

void Graph::replay() {
  impl_->graph.replay();
}

}  // namespace kinora::device
