#include "kinora/device/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/kernels/cuda/graph_counters.h"
#include "kinora/kernels/cuda/graph_memsets.h"

namespace kinora::device {
namespace {

/// Of the current device, by all of the allocator's pools.
int64_t reserved_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto device = c10::cuda::current_device();
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device).reserved_bytes[kAll].current;
}

/// Of a graph whose recording has failed: the stream goes on as before.
void end_unfinished(at::cuda::CUDAGraph& graph) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
    // It has ended all the same.
  }
  graph.reset();
}

/// A record() of this thread.
class Recording {
 public:
  static thread_local bool is_on;

  Recording() { is_on = true; }
  ~Recording() { is_on = false; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
};
thread_local bool Recording::is_on = false;

}  // namespace

int64_t reserved_by(const std::function<void()>& work) {
  c10::cuda::getCurrentCUDAStream().synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const int64_t before = reserved_bytes();
  work();
  return reserved_bytes() - before;
}

int64_t free_bytes() {
  c10::cuda::getCurrentCUDAStream().synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  return cuda_free_memory(c10::cuda::current_device());
}

struct GraphPool::Impl {
  at::cuda::MempoolId_t id = at::cuda::graph_pool_handle();
  // The allocator gives memory to the stream that had it before alone.
  c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  int64_t bytes = 0;
};

GraphPool::GraphPool() : impl_(std::make_unique<Impl>()) {}
GraphPool::~GraphPool() = default;

int64_t GraphPool::num_bytes() const {
  return impl_->bytes;
}

struct Graph::Impl {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};  // so that it can be changed
  bool recorded = false;
};

Graph::Graph() : impl_(std::make_unique<Impl>()) {}
Graph::~Graph() = default;

void Graph::record(const std::function<void()>& work, GraphPool* pool) {
  KINORA_CHECK(!impl_->recorded, kInternal, "[graph] is recorded already");
  const c10::cuda::CUDAStream side =
      pool != nullptr ? pool->impl_->stream : c10::cuda::getStreamFromPool();
  const int64_t bytes = reserved_by([&] {
    const c10::cuda::CUDAStreamGuard guard(side);
    try {
      const at::cuda::MempoolId_t memory =
          pool != nullptr ? pool->impl_->id : at::cuda::MempoolId_t{0, 0};
      impl_->graph.capture_begin(memory, cudaStreamCaptureModeThreadLocal);
      {
        const Recording recording;
        work();
      }
      impl_->graph.capture_end();
      cudaGraph_t const recorded = impl_->graph.raw_cuda_graph();
      KINORA_CUDA_CHECK(kernels::cuda::drop_repeated_clears(recorded));
      KINORA_CUDA_CHECK(kernels::cuda::replace_memsets(recorded));
      impl_->graph.instantiate();
    } catch (const c10::OutOfMemoryError& error) {
      end_unfinished(impl_->graph);
      throw_error(ErrorKind::kMemory, "[graph] there is no memory for a CUDA graph of the step: ",
                  error.what_without_backtrace());
    } catch (const c10::Error& error) {
      throw_error(ErrorKind::kCuda, "[graph] the step could not be recorded as a CUDA graph: ",
                  error.what_without_backtrace(), ". Hint: kernels.graphs=off runs without");
    }
  });
  impl_->recorded = true;
  if (pool != nullptr) {
    pool->impl_->bytes += bytes;
  }
}

bool Graph::is_recording() {
  return Recording::is_on;
}

bool Graph::is_recorded() const {
  return impl_->recorded;
}

void Graph::replay() {
  impl_->graph.replay();
}

}  // namespace kinora::device
