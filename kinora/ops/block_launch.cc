#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/block_launch.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/kernels/cuda/activation.h"
#include "kinora/kernels/cuda/attention.h"
#include "kinora/kernels/cuda/column_sums.h"
#include "kinora/kernels/cuda/cudnn_attention.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/fp8_blocks.h"
#include "kinora/kernels/cuda/low_rank.h"
#include "kinora/kernels/cuda/matmul.h"
#include "kinora/kernels/cuda/modulated_norm.h"
#include "kinora/kernels/cuda/qk_norm_rotary.h"
#include "kinora/kernels/cuda/random.h"
#include "kinora/kernels/cuda/rms_norm.h"
#include "kinora/ops/block_dry_run.h"

namespace kinora::ops::cuda {
namespace {

cudaStream_t stream() {
  return c10::cuda::getCurrentCUDAStream();
}

/// Scratch for one launch. Handed back at once: later work of this stream comes after it.
at::Tensor scratch(size_t bytes) {
  return at::empty(
      {static_cast<int64_t>(std::max<size_t>(bytes, 1))},
      at::TensorOptions(at::kByte).device(device::in_dry_run() ? at::kMeta : at::kCUDA));
}

}  // namespace

bool is_capturing() {
  if (device::in_dry_run()) {
    return true;
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  KINORA_CUDA_CHECK(cudaStreamIsCapturing(stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Milliseconds of `launch`: the median of a few, after a first.
double milliseconds(const std::function<void()>& launch) {
  constexpr int kRepeats = 7;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  std::vector<double> times;
  for (int i = 0; i <= kRepeats; ++i) {
    KINORA_CUDA_CHECK(cudaEventRecord(start, stream()));
    launch();
    KINORA_CUDA_CHECK(cudaEventRecord(stop, stream()));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float elapsed = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&elapsed, start, stop));
    if (i > 0) {
      times.push_back(static_cast<double>(elapsed));
    }
  }
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

int kernel_capability(at::Device device) {
  return device.is_cuda() && kernels::cuda::has_cuda_kernels() ? kernels::cuda::kernel_capability()
                                                               : 0;
}

bool has_block_kernels(at::Device device, at::ScalarType type) {
  if (device::in_dry_run()) {
    return device::is_gpu(device);
  }
  return kernel_capability(device) >= (type == at::kBFloat16 ? 80 : 75);
}

void residual_norm_forward(const kernels::ResidualNormForward& call) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::residual_norm_forward(call, stream()));
}

void residual_norm_backward(const kernels::ResidualNormBackward& call) {
  if (device::in_dry_run()) {
    return;
  }
  const at::Tensor workspace =
      scratch(kernels::cuda::residual_norm_backward_workspace_bytes(call.rows, call.width));
  KINORA_CUDA_CHECK(kernels::cuda::residual_norm_backward(call, workspace.data_ptr(), stream()));
}

void qk_norm_rotary_forward(const kernels::QkNormRotaryForward& call) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::qk_norm_rotary_forward(call, stream()));
}

void qk_norm_rotary_backward(const kernels::QkNormRotaryBackward& call) {
  if (device::in_dry_run()) {
    return;
  }
  const at::Tensor workspace = scratch(kernels::cuda::qk_norm_rotary_backward_workspace_bytes(
      call.rule.rows, call.rule.head_dim, call.dq_weight != nullptr));
  KINORA_CUDA_CHECK(kernels::cuda::qk_norm_rotary_backward(call, workspace.data_ptr(), stream()));
}

void rms_norm_forward(const kernels::RmsNormForward& call) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::rms_norm_forward(call, stream()));
}

void rms_norm_backward(const kernels::RmsNormBackward& call) {
  const at::Tensor workspace = scratch(kernels::cuda::rms_norm_backward_workspace_bytes(
      call.rows, call.width, call.dweight != nullptr));
  if (!device::in_dry_run()) {
    KINORA_CUDA_CHECK(kernels::cuda::rms_norm_backward(call, workspace.data_ptr(), stream()));
  }
}

bool low_rank_supported(DType type, int64_t in, int64_t out, int64_t rank) {
  return device::in_dry_run() ? dry_low_rank_supported(type, in, out)
                              : kernels::cuda::low_rank_supported(type, in, out, rank);
}

void low_rank_forward(const kernels::LowRankForward& call) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::low_rank_forward(call, stream()));
}

at::Tensor low_rank_backward(const kernels::LowRankBackward& call) {
  const at::Tensor workspace = scratch(
      kernels::cuda::low_rank_backward_workspace_bytes(call.rows, call.in, call.out, call.rank));
  if (!device::in_dry_run()) {
    KINORA_CUDA_CHECK(kernels::cuda::low_rank_backward(call, workspace.data_ptr(), stream()));
  }
  return workspace;
}

void low_rank_add_gradients(const std::vector<LowRankParts>& parts) {
  if (device::in_dry_run()) {
    return;
  }
  std::vector<kernels::cuda::LowRankParts> batch;
  for (const LowRankParts& part : parts) {
    batch.push_back({part.call, part.parts.const_data_ptr()});
    if (batch.size() == kernels::cuda::kMaxLowRankParts || &part == &parts.back()) {
      KINORA_CUDA_CHECK(kernels::cuda::low_rank_add_gradients(batch, stream()));
      batch.clear();
    }
  }
}

void add_column_sums(const at::Tensor& in, const at::Tensor& out) {
  if (device::in_dry_run()) {
    return;
  }
  const at::Tensor workspace =
      scratch(kernels::cuda::column_sums_workspace_bytes(in.size(0), in.size(1)));
  KINORA_CUDA_CHECK(kernels::cuda::column_sums({.rows = in.size(0),
                                                .width = in.size(1),
                                                .row_stride = in.stride(0),
                                                .type = device::dtype_of(in.scalar_type()),
                                                .in = in.const_data_ptr(),
                                                .out = out.data_ptr<float>()},
                                               workspace.data_ptr(), stream()));
}

void gelu(const at::Tensor& pre, const at::Tensor& out, const kernels::Fp8Output& out_fp8) {
  if (device::in_dry_run()) {
    return;
  }
  kernels::ActivationForward call;
  call.rows = pre.size(0);
  call.width = pre.size(1);
  call.type = device::dtype_of(pre.scalar_type());
  call.u = pre.const_data_ptr();
  call.g = out.defined() ? out.data_ptr() : nullptr;
  call.g_fp8 = out_fp8;
  KINORA_CUDA_CHECK(kernels::cuda::activation_forward(call, stream()));
}

void gelu_backward(const at::Tensor& pre, const at::Tensor& grad, const at::Tensor& dpre,
                   const kernels::Fp8Output& dpre_fp8, const at::Tensor& bias_grad) {
  if (device::in_dry_run()) {
    return;
  }
  kernels::ActivationBackward call;
  call.rows = pre.size(0);
  call.width = pre.size(1);
  call.type = device::dtype_of(pre.scalar_type());
  call.u = pre.const_data_ptr();
  call.dg = grad.const_data_ptr();
  call.du = dpre.defined() ? dpre.data_ptr() : nullptr;
  call.du_fp8 = dpre_fp8;
  call.bias_grad = bias_grad.data_ptr<float>();
  const at::Tensor workspace =
      scratch(kernels::cuda::activation_backward_workspace_bytes(call.rows, call.width, true));
  KINORA_CUDA_CHECK(kernels::cuda::activation_backward(call, workspace.data_ptr(), stream()));
}

void quantise(const at::Tensor& in, const kernels::Fp8Output& out, const at::Tensor& column_sums) {
  if (device::in_dry_run()) {
    return;
  }
  const bool wants_sums = column_sums.defined();
  const at::Tensor workspace =
      scratch(wants_sums ? kernels::cuda::quantise_workspace_bytes(in.size(0), in.size(1)) : 0);
  KINORA_CUDA_CHECK(
      kernels::cuda::quantise({.rows = in.size(0),
                               .width = in.size(1),
                               .type = device::dtype_of(in.scalar_type()),
                               .in = in.const_data_ptr(),
                               .out = out,
                               .column_sums = wants_sums ? column_sums.data_ptr<float>() : nullptr,
                               .row_stride = in.size(0) > 1 ? in.stride(0) : 0},
                              workspace.data_ptr(), stream()));
}

void block_quantise(const at::Tensor& in, kernels::BlockQuantise call) {
  if (device::in_dry_run()) {
    return;
  }
  call.rows = in.size(0);
  call.width = in.size(1);
  call.type = device::dtype_of(in.scalar_type());
  call.in = in.const_data_ptr();
  KINORA_CUDA_CHECK(kernels::cuda::block_quantise(call, stream()));
}

void block_sums(const kernels::BlockSums& call) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::block_sums(call, stream()));
}

void update_scales(const kernels::ScaleUpdate& update) {
  if (device::in_dry_run()) {
    return;
  }
  KINORA_CUDA_CHECK(kernels::cuda::update_scales(update, stream()));
}

/// Where algorithms found once are kept for the next run: the user's cache folder, or nowhere.
std::string cache_file() {
  const auto folder = [](const char* variable, const char* below) {
    const char* value = std::getenv(variable);
    return value != nullptr && *value != 0 ? std::string(value) + below : std::string();
  };
  std::string path = folder("XDG_CACHE_HOME", "/kinora");
  if (path.empty()) {
    path = folder("HOME", "/.cache/kinora");
  }
  return path.empty() ? path : path + "/matmul.txt";
}

struct Products::Impl {
  kernels::cuda::Matmul matmul;
};

Products::Products(bool deterministic)
    : impl_(device::in_dry_run()
                ? nullptr
                : new Impl{kernels::cuda::Matmul({.cache_file = cache_file(),
                                                  .search = !deterministic,
                                                  .deterministic = deterministic})}) {}
Products::~Products() = default;

bool Products::supports(const kernels::MatmulProblem& problem) {
  return impl_ == nullptr || impl_->matmul.supports(problem);
}
void Products::run(const kernels::MatmulProblem& problem,
                   const kernels::MatmulArguments& arguments) {
  if (impl_ != nullptr) {
    impl_->matmul.run(problem, arguments, stream());
  }
}
std::vector<std::string> Products::report() const {
  return impl_->matmul.report();
}
std::string Products::choices() const {
  return impl_->matmul.choices();
}
size_t Products::pin(const std::string& choices) {
  return impl_->matmul.pin(choices);
}

std::map<std::string, std::string> library_versions() {
  std::map<std::string, std::string> versions = {
      {"cuBLASLt", std::to_string(kernels::cuda::Matmul::library_version())}};
  if (const auto& hooks = at::detail::getCUDAHooks(); hooks.compiledWithCuDNN()) {
    versions.emplace("cuDNN", std::to_string(hooks.versionRuntimeCuDNN()));
  }
  return versions;
}

struct FusedAttention::Impl {
  /// What runs a shape in one direction.
  struct Choice {
    kernels::AttentionShape shape;  // without pointers
    bool equal_keys;
    bool masked;
    bool backward;
    bool has_lse;
    bool own;
    bool cudnn_possible;
    double own_ms;
    double cudnn_ms;
    bool timed;
  };

  explicit Impl(bool deterministic) : times(!deterministic), cudnn(deterministic) {}

  /// Until a shape's plans have been timed for the largest of them, which may be many times what
  /// the fastest one takes.
  template <typename Call>
  at::Tensor workspace_of(const Call& call) {
    try {
      return scratch(cudnn.workspace_bytes(call));
    } catch (const c10::OutOfMemoryError&) {
      cudnn.take_smallest(call);
      return scratch(cudnn.workspace_bytes(call));
    }
  }

  void launch_cudnn(const kernels::AttentionForward& call) {
    const at::Tensor workspace = workspace_of(call);
    cudnn.forward(call, workspace.data_ptr(), stream());
  }
  void launch_cudnn(const kernels::AttentionBackward& call) {
    const at::Tensor workspace = workspace_of(call);
    cudnn.backward(call, workspace.data_ptr(), stream());
  }
  static void launch_own(const kernels::AttentionForward& call) {
    KINORA_CUDA_CHECK(kernels::cuda::attention_forward(call, stream()));
  }
  static void launch_own(const kernels::AttentionBackward& call) {
    const at::Tensor workspace =
        scratch(kernels::cuda::attention_backward_workspace_bytes(call.shape));
    KINORA_CUDA_CHECK(kernels::cuda::attention_backward(call, workspace.data_ptr(), stream()));
  }

  static int64_t own_workspace(const kernels::AttentionForward& /*call*/) { return 0; }
  static int64_t own_workspace(const kernels::AttentionBackward& call) {
    return static_cast<int64_t>(kernels::cuda::attention_backward_workspace_bytes(call.shape));
  }

  /// Chosen once a shape; while a graph is captured nothing can be timed, and our own is taken, as
  /// where the same bits are wanted each time.
  template <typename Call>
  const Choice& choose(const Call& call, bool backward, bool has_lse) {
    kernels::AttentionShape shape = call.shape;
    shape.key_offsets = nullptr;
    shape.key_lengths = nullptr;
    shape.mask = {};
    const bool equal_keys = call.shape.has_equal_keys();
    const bool masked = call.shape.mask.any();
    for (Choice& choice : choices) {
      if (choice.shape == shape && choice.equal_keys == equal_keys && choice.masked == masked &&
          choice.backward == backward && choice.has_lse == has_lse) {
        if (choice.timed || !times || is_capturing()) {
          return choice;
        }
        measure(call, choice);
        return choice;
      }
    }
    Choice choice{.shape = shape,
                  .equal_keys = equal_keys,
                  .masked = masked,
                  .backward = backward,
                  .has_lse = has_lse,
                  .own = kernels::cuda::attention_supported(call.shape),
                  .cudnn_possible = times && cudnn.unsupported_reason(call).empty(),
                  .own_ms = 0.0,
                  .cudnn_ms = 0.0,
                  .timed = false};
    if (times && !is_capturing()) {
      measure(call, choice);
    }
    return choices.emplace_back(choice);
  }

  template <typename Call>
  void measure(const Call& call, Choice& choice) {
    const bool own_possible =
        kernels::cuda::attention_supported(call.shape) &&
        (!choice.cudnn_possible ||
         kernels::is_worth_trying(own_workspace(call),
                                  static_cast<int64_t>(cudnn.workspace_bytes(call))));
    if (own_possible) {
      choice.own_ms = milliseconds([&] { launch_own(call); });
    }
    if (choice.cudnn_possible) {
      choice.cudnn_ms = milliseconds([&] { launch_cudnn(call); });
    }
    choice.own = own_possible && (!choice.cudnn_possible || choice.own_ms <= choice.cudnn_ms);
    choice.timed = true;
  }

  bool times;
  kernels::cuda::CudnnAttention cudnn;
  std::vector<Choice> choices;
};

FusedAttention::FusedAttention(bool deterministic)
    : impl_(device::in_dry_run() ? nullptr : new Impl(deterministic)) {}
FusedAttention::~FusedAttention() = default;

std::string FusedAttention::unsupported_reason(const kernels::AttentionForward& call) {
  if (impl_ == nullptr) {
    return dry_attention_refusal(call.shape);
  }
  if (kernels::cuda::attention_supported(call.shape)) {
    return "";
  }
  return impl_->cudnn.unsupported_reason(call);
}

void FusedAttention::forward(const kernels::AttentionForward& call) {
  if (impl_ == nullptr) {
    return;
  }
  if (impl_->choose(call, false, call.lse != nullptr).own) {
    Impl::launch_own(call);
  } else {
    impl_->launch_cudnn(call);
  }
}

void FusedAttention::backward(const kernels::AttentionBackward& call) {
  if (impl_ == nullptr) {
    const at::Tensor workspace = dry_attention_workspace(call.shape);
    return;
  }
  if (impl_->choose(call, true, true).own) {
    Impl::launch_own(call);
  } else {
    impl_->launch_cudnn(call);
  }
}

std::string FusedAttention::describe() const {
  if (impl_->choices.empty()) {
    return impl_->times ? "own or cuDNN's, chosen by timing at the first step"
                        : "own where it can, else cuDNN's";
  }
  std::ostringstream text;
  text.precision(3);
  for (const Impl::Choice& choice : impl_->choices) {
    text << (&choice == impl_->choices.data() ? "" : "; ")
         << (choice.backward ? "backward " : "forward ") << (choice.own ? "own" : "cuDNN") << " (B"
         << choice.shape.batch << " H" << choice.shape.heads << " N" << choice.shape.query_length;
    if (choice.shape.key_length != choice.shape.query_length) {
      text << " keys " << choice.shape.key_length;
    }
    text << " D" << choice.shape.head_dim << (choice.masked ? " in blocks" : "");
    if (choice.timed) {
      text << ": own " << choice.own_ms << " ms, cuDNN " << choice.cudnn_ms << " ms";
    }
    text << ")";
  }
  return text.str();
}

}  // namespace kinora::ops::cuda
