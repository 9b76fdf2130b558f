// cuDNN's fused attention, described by cudnn-frontend's graphs. The only file that includes
// cudnn-frontend, which costs most of its compile time.
//
// A call's shape, strides and outputs make its key. The first call of a key asks cuDNN's heuristics
// (mode A) for plans, in each of the ways in which cuDNN can be asked for the operation:
//   forward: as one operation, or as the chain of operations that cuDNN recognises
//   backward: dQ summed by atomic additions in an fp32 array, or by a second matrix product from dS
//     [batch, heads, query_length, key_length] in the workspace, the one with fixed sums
// The first launch of a key outside of a capture times them all on the buffers of the call, which
// are overwritten by the same numbers each time, and keeps the fastest. Asked for the same bits,
// there is no choice by time: the first plan that can be built is it.
#include "kinora/kernels/cuda/cudnn_attention.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <map>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"

namespace kinora::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr uintptr_t kAlignment =
    16;  // bytes, of addresses and strides: cuDNN moves rows in vectors
constexpr int64_t kHeadDimMultiple = 8;
constexpr int64_t kMaxChosenWorkspace = int64_t{1} << 30;  // more is not worth the time it may save
constexpr int kTimedRounds = 3;
constexpr int kLaunchesPerRound = 3;
constexpr int kNumWays = 2;

/// The tensors' ids in cuDNN's graphs.
enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Operand {
  Id id;
  const HeadsView* view;
  bool keys;  ///< as long as the keys, not the queries
};

std::vector<Operand> operands(const AttentionForward& call) {
  return {{kQ, &call.q, false}, {kK, &call.k, true}, {kV, &call.v, true}, {kOut, &call.out, false}};
}

std::vector<Operand> operands(const AttentionBackward& call) {
  return {{kQ, &call.q, false},     {kK, &call.k, true},        {kV, &call.v, true},
          {kOut, &call.out, false}, {kDout, &call.dout, false}, {kDq, &call.dq, false},
          {kDk, &call.dk, true},    {kDv, &call.dv, true}};
}

using Pointers = std::unordered_map<int64_t, void*>;

template <typename Call>
Pointers pointers(const Call& call) {
  Pointers result;
  for (const Operand& operand : operands(call)) {
    result.emplace(operand.id, operand.view->data);
  }
  if (call.lse != nullptr) {
    result.emplace(kLse, const_cast<float*>(call.lse));
  }
  return result;
}

/// What must hold before cuDNN is asked, since it does not check; empty if it does.
template <typename Call>
std::string refusal(const Call& call) {
  const AttentionShape& shape = call.shape;
  if (shape.type != DType::kBF16 && shape.type != DType::kF16) {
    return "the type must be BF16 or F16, got " + std::string(to_string(shape.type));
  }
  if (shape.mask.any()) {
    return "it has no masks of blocks";
  }
  if (!shape.has_equal_keys()) {
    return "ragged keys need offsets in elements and a second array of lengths on the device";
  }
  if (shape.batch < 1 || shape.heads < 1 || shape.query_length < 1 || shape.key_length < 1) {
    return "the call is empty";
  }
  if (shape.head_dim < 1 || shape.head_dim % kHeadDimMultiple != 0) {
    return "head_dim must be a multiple of 8, got " + std::to_string(shape.head_dim);
  }
  if (std::is_same_v<Call, AttentionBackward> && call.lse == nullptr) {
    return "the gradient needs lse";
  }
  const auto unit = static_cast<int64_t>(kAlignment / size_of(shape.type));
  for (const Operand& operand : operands(call)) {
    const HeadsView& view = *operand.view;
    if (reinterpret_cast<uintptr_t>(view.data) % kAlignment != 0 || view.row_stride % unit != 0 ||
        (shape.batch > 1 && view.batch_stride % unit != 0) ||
        (shape.heads > 1 && view.head_stride % unit != 0)) {
      return "addresses and strides must be multiples of 16 bytes";
    }
  }
  return {};
}

void describe(fe::graph::Tensor_attributes& tensor, const AttentionShape& shape,
              const Operand& operand) {
  const int64_t length = operand.keys ? shape.key_length : shape.query_length;
  const HeadsView& view = *operand.view;
  // cuDNN knows the order of the dimensions by their strides, also of those of one element.
  const int64_t head = shape.heads > 1 ? view.head_stride : shape.head_dim;
  const int64_t row = length > 1 ? view.row_stride : shape.heads * shape.head_dim;
  const int64_t batch = shape.batch > 1 ? view.batch_stride : length * row;
  tensor.set_uid(operand.id)
      .set_dim({shape.batch, shape.heads, length, shape.head_dim})
      .set_stride({batch, head, row, 1});
}

void describe_lse(fe::graph::Tensor_attributes& tensor, const AttentionShape& shape) {
  tensor.set_uid(kLse)
      .set_dim({shape.batch, shape.heads, shape.query_length, 1})
      .set_stride({shape.heads * shape.query_length, shape.query_length, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

std::unique_ptr<fe::graph::Graph> new_graph(DType type) {
  auto graph = std::make_unique<fe::graph::Graph>();
  graph->set_io_data_type(type == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

Tensor input(fe::graph::Graph& graph, const AttentionShape& shape, const Operand& operand) {
  fe::graph::Tensor_attributes tensor;
  describe(tensor, shape, operand);
  return graph.tensor(tensor);
}

void output(const Tensor& tensor, const AttentionShape& shape, const Operand& operand) {
  tensor->set_output(true);
  describe(*tensor, shape, operand);
}

std::unique_ptr<fe::graph::Graph> make_graph(const AttentionForward& call, int way) {
  const std::vector<Operand> all = operands(call);
  auto graph = new_graph(call.shape.type);
  const auto attributes =
      fe::graph::SDPA_attributes()
          .set_name("attention")
          .set_generate_stats(call.lse != nullptr)
          .set_attn_scale(call.shape.scale)
          .set_implementation(way == 0 ? fe::AttentionImplementation_t::COMPOSITE
                                       : fe::AttentionImplementation_t::UNIFIED);
  const auto [out, lse] =
      graph->sdpa(input(*graph, call.shape, all[0]), input(*graph, call.shape, all[1]),
                  input(*graph, call.shape, all[2]), attributes);
  output(out, call.shape, all[3]);
  if (call.lse != nullptr) {
    lse->set_output(true);
    describe_lse(*lse, call.shape);
  }
  return graph;
}

std::unique_ptr<fe::graph::Graph> make_graph(const AttentionBackward& call, int way) {
  const std::vector<Operand> all = operands(call);
  auto graph = new_graph(call.shape.type);
  fe::graph::Tensor_attributes lse;
  describe_lse(lse, call.shape);
  const auto attributes = fe::graph::SDPA_backward_attributes()
                              .set_name("attention_backward")
                              .set_attn_scale(call.shape.scale)
                              .set_deterministic_algorithm(way == 1);
  const auto [dq, dk, dv] =
      graph->sdpa_backward(input(*graph, call.shape, all[0]), input(*graph, call.shape, all[1]),
                           input(*graph, call.shape, all[2]), input(*graph, call.shape, all[3]),
                           input(*graph, call.shape, all[4]), graph->tensor(lse), attributes);
  output(dq, call.shape, all[5]);
  output(dk, call.shape, all[6]);
  output(dv, call.shape, all[7]);
  return graph;
}

using Key = std::vector<int64_t>;

template <typename Call>
Key key_of(const Call& call) {
  const AttentionShape& shape = call.shape;
  Key key = {std::is_same_v<Call, AttentionBackward> ? 1 : 0,
             call.lse != nullptr ? 1 : 0,
             static_cast<int64_t>(shape.type),
             std::bit_cast<int32_t>(shape.scale),
             shape.batch,
             shape.heads,
             shape.query_length,
             shape.key_length,
             shape.head_dim};
  for (const Operand& operand : operands(call)) {
    key.insert(key.end(),
               {operand.view->batch_stride, operand.view->row_stride, operand.view->head_stride});
  }
  return key;
}

struct Plan {
  const fe::graph::Graph* graph = nullptr;
  int64_t index = 0;  ///< in the graph
  int64_t workspace_bytes = 0;
};

/// What is known of one key.
struct Plans {
  std::string reason;  ///< why there are no plans
  // Never dropped: a CUDA graph may have been captured from any plan of them.
  std::vector<std::unique_ptr<fe::graph::Graph>> graphs;
  std::vector<Plan> plans;
  size_t chosen = 0;
  bool timed = false;
};

class Event {
 public:
  Event() { KINORA_CUDA_CHECK(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

class CudnnAttention::Impl {
 public:
  explicit Impl(bool deterministic) : deterministic_(deterministic) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (handle_ != nullptr) {
      cudnnDestroy(handle_);
    }
  }

  template <typename Call>
  std::string unsupported_reason(const Call& call) {
    std::string reason = refusal(call);
    return reason.empty() ? plans_of(call).reason : reason;
  }

  template <typename Call>
  size_t workspace_bytes(const Call& call) {
    const Plans& plans = supported(call);
    if (plans.timed) {
      return static_cast<size_t>(plans.plans[plans.chosen].workspace_bytes);
    }
    int64_t bytes = 0;
    for (const Plan& plan : plans.plans) {
      bytes = std::max(bytes, plan.workspace_bytes);
    }
    return static_cast<size_t>(bytes);
  }

  template <typename Call>
  void take_smallest(const Call& call) {
    Plans& plans = supported(call);
    const auto least = std::ranges::min_element(plans.plans, {}, &Plan::workspace_bytes);
    plans.chosen = static_cast<size_t>(least - plans.plans.begin());
    plans.timed = true;
  }

  template <typename Call>
  void launch(const Call& call, void* workspace, cudaStream_t stream) {
    Plans& plans = supported(call);
    KINORA_CHECK(cudnnSetStream(handle_, stream) == CUDNN_STATUS_SUCCESS, kInternal,
                 "[cudnn_attention] cuDNN refused the stream");
    const Pointers data = pointers(call);
    if (!plans.timed) {
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
      KINORA_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
      if (capture == cudaStreamCaptureStatusNone) {
        choose(plans, data, workspace, stream);
      }
    }
    fe::error_t status = execute(plans.plans[plans.chosen], data, workspace);
    KINORA_CHECK(status.is_good(), kInternal,
                 "[cudnn_attention] cuDNN failed: ", status.get_message());
  }

 private:
  /// The plans of a call that has some.
  template <typename Call>
  Plans& supported(const Call& call) {
    const std::string reason = refusal(call);
    KINORA_CHECK(reason.empty(), kInternal, "[cudnn_attention] ", reason);
    Plans& plans = plans_of(call);
    KINORA_CHECK(plans.reason.empty(), kInternal, "[cudnn_attention] ", plans.reason);
    return plans;
  }

  template <typename Call>
  Plans& plans_of(const Call& call) {
    Key key = key_of(call);
    const auto found = plans_.find(key);
    if (found != plans_.end()) {
      return found->second;
    }
    return plans_.emplace(std::move(key), make_plans(call)).first->second;
  }

  template <typename Call>
  Plans make_plans(const Call& call) {
    Plans plans;
    if (handle_ == nullptr) {
      const cudnnStatus_t status = cudnnCreate(&handle_);
      if (status != CUDNN_STATUS_SUCCESS) {
        handle_ = nullptr;
        plans.reason = std::string("cuDNN does not start: ") + cudnnGetErrorString(status);
        return plans;
      }
    }
    std::string reason;
    for (int i = 0; i < kNumWays && !(deterministic_ && !plans.plans.empty()); ++i) {
      const int way = deterministic_ ? kNumWays - 1 - i : i;
      if (deterministic_ && std::is_same_v<Call, AttentionBackward> && way == 0) {
        break;  // atomic additions
      }
      try {
        reason = add_plans(make_graph(call, way), plans);
      } catch (const std::exception& error) {
        reason = error.what();
      }
    }
    if (plans.plans.empty()) {
      plans.reason = "cuDNN has no plan: " + reason;
    }
    if (std::is_same_v<Call, AttentionBackward> && !plans.plans.empty()) {
      const int64_t least =
          std::ranges::min(plans.plans, {}, &Plan::workspace_bytes).workspace_bytes;
      std::erase_if(plans.plans, [least](const Plan& plan) {
        return !is_worth_trying(plan.workspace_bytes, least);
      });
    }
    plans.timed = plans.plans.size() == 1;
    return plans;
  }

  /// Builds the plans of a graph; why not, if there are none.
  std::string add_plans(std::unique_ptr<fe::graph::Graph> graph, Plans& plans) {
    if (!deterministic_) {
      graph->deselect_workspace_greater_than(kMaxChosenWorkspace);
    }
    auto status = graph->validate();
    if (status.is_good()) {
      status = graph->build_operation_graph(handle_);
    }
    if (status.is_good()) {
      status = graph->create_execution_plans({fe::HeurMode_t::A});
    }
    if (status.is_bad()) {
      return status.get_message();
    }
    bool used = false;
    for (int64_t i = 0; i < graph->get_execution_plan_count() && !(deterministic_ && used); ++i) {
      int64_t bytes = 0;
      status = graph->build_plan_at_index(i);
      if (status.is_good()) {
        status = graph->get_workspace_size_plan_at_index(i, bytes);
      }
      if (status.is_good()) {
        plans.plans.push_back({graph.get(), i, bytes});
        used = true;
      }
    }
    if (used) {
      plans.graphs.push_back(std::move(graph));
      return {};
    }
    return status.get_message();
  }

  fe::error_t execute(const Plan& plan, Pointers data, void* workspace) const {
    return plan.graph->execute_plan_at_index(handle_, data, workspace, plan.index);
  }

  void choose(Plans& plans, const Pointers& data, void* workspace, cudaStream_t stream) {
    const Event start;
    const Event stop;
    float least = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < plans.plans.size(); ++i) {
      if (execute(plans.plans[i], data, workspace).is_bad()) {  // also the warm-up
        continue;
      }
      float own = std::numeric_limits<float>::infinity();
      for (int round = 0; round < kTimedRounds; ++round) {
        KINORA_CUDA_CHECK(cudaEventRecord(start.get(), stream));
        for (int launch = 0; launch < kLaunchesPerRound; ++launch) {
          (void)execute(plans.plans[i], data, workspace);
        }
        KINORA_CUDA_CHECK(cudaEventRecord(stop.get(), stream));
        KINORA_CUDA_CHECK(cudaEventSynchronize(stop.get()));
        float milliseconds = 0.0F;
        KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()));
        own = std::min(own, milliseconds / kLaunchesPerRound);
      }
      std::string name;
      (void)plans.plans[i].graph->get_plan_name_at_index(plans.plans[i].index, name);
      log_debug("cudnn_attention: plan ", i + 1, " of ", plans.plans.size(), ", ", name, ", ", own,
                " ms, ", plans.plans[i].workspace_bytes, " bytes of workspace");
      if (own < least) {
        least = own;
        plans.chosen = i;
      }
    }
    plans.timed = true;
  }

  bool deterministic_;
  cudnnHandle_t handle_ = nullptr;  // of the device that is current at the first call
  std::map<Key, Plans> plans_;
};

CudnnAttention::CudnnAttention(bool deterministic) : impl_(std::make_unique<Impl>(deterministic)) {}

CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::unsupported_reason(const AttentionForward& call) {
  return impl_->unsupported_reason(call);
}

std::string CudnnAttention::unsupported_reason(const AttentionBackward& call) {
  return impl_->unsupported_reason(call);
}

void CudnnAttention::take_smallest(const AttentionForward& call) {
  impl_->take_smallest(call);
}
void CudnnAttention::take_smallest(const AttentionBackward& call) {
  impl_->take_smallest(call);
}

size_t CudnnAttention::workspace_bytes(const AttentionForward& call) {
  return impl_->workspace_bytes(call);
}

size_t CudnnAttention::workspace_bytes(const AttentionBackward& call) {
  return impl_->workspace_bytes(call);
}

void CudnnAttention::forward(const AttentionForward& call, void* workspace, cudaStream_t stream) {
  impl_->launch(call, workspace, stream);
}

void CudnnAttention::backward(const AttentionBackward& call, void* workspace, cudaStream_t stream) {
  impl_->launch(call, workspace, stream);
}

}  // namespace kinora::kernels::cuda
