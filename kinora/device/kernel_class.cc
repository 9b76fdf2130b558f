#include "kinora/device/kernel_class.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace kinora::device {
namespace {

struct Rule {
  KernelClass kind;
  std::initializer_list<std::string_view> parts;  // any of them
};

// The first rule that fits counts: names of attention hold "cutlass", those of products "gelu".
const std::initializer_list<Rule> kRules = {
    {KernelClass::kCommunication,
     {"nccl", "peer_scatter", "cuda::(anonymous namespace)::barrier_kernel"}},
    {KernelClass::kAttention,
     {"cuda::attention::", "sdpa", "flash", "fmha", "AttentionKernel", "softmax", "SoftMax",
      "compute_dot_do_o", "convert_dq", "cudnn::fusion::matmul_dq"}},
    {KernelClass::kNorm,
     {"ResidualNorm", "modulated_norm", "layer_norm", "LayerNorm", "RowwiseMoments", "GammaBeta",
      "rms_norm", "qk_norm"}},
    {KernelClass::kGemm,
     {"gemm", "Gemm", "nvjet", "xmma", "cutlass", "splitKreduce", "cublasLt", "gemv",
      "dot_kernel"}},
    {KernelClass::kReduction, {"column_sums", "add_partial_sums", "reduce_kernel"}},
    {KernelClass::kOptimizer,
     {"Adam", "update_weights", "prepare_update", "StepControl", "partial_sums_kernel",
      "multi_tensor_apply"}},
    {KernelClass::kRandom, {"random_fill", "distribution", "curand", "philox"}},
    {KernelClass::kLoss, {"loss", "Loss"}},
    {KernelClass::kActivation,
     {"Gelu", "gelu", "GELU", "silu", "Silu", "activation",
      "cuda::(anonymous namespace)::flat_kernel", "cuda::(anonymous namespace)::tile_kernel"}},
    {KernelClass::kCopy,
     {"copy", "Copy", "CatArray", "cast_kernel", "memset", "quantise", "transpose",
      "patches_kernel"}},
    {KernelClass::kElementwise, {"elementwise", "at::native", "index_elementwise"}},
};

void remove_all(std::string* text, std::string_view part) {
  for (size_t at = text->find(part); at != std::string::npos; at = text->find(part, at)) {
    text->erase(at, part.size());
  }
}

}  // namespace

std::string_view to_string(KernelClass value) {
  switch (value) {
    case KernelClass::kGemm:
      return "gemm";
    case KernelClass::kAttention:
      return "attention";
    case KernelClass::kNorm:
      return "norm";
    case KernelClass::kActivation:
      return "activation";
    case KernelClass::kReduction:
      return "reduction";
    case KernelClass::kOptimizer:
      return "optimizer";
    case KernelClass::kRandom:
      return "random";
    case KernelClass::kCopy:
      return "copy";
    case KernelClass::kLoss:
      return "loss";
    case KernelClass::kElementwise:
      return "elementwise";
    case KernelClass::kCommunication:
      return "communication";
    case KernelClass::kOther:
      return "other";
  }
  return "other";
}

KernelClass classify_kernel(std::string_view name) {
  for (const Rule& rule : kRules) {
    const bool fits = std::any_of(rule.parts.begin(), rule.parts.end(), [&](std::string_view part) {
      return name.find(part) != std::string_view::npos;
    });
    if (fits) {
      return rule.kind;
    }
  }
  return KernelClass::kOther;
}

std::string short_kernel_name(std::string_view name, size_t width) {
  std::string text(name.starts_with("void ") ? name.substr(5) : name);
  for (const std::string_view part :
       {"(anonymous namespace)::", "kinora::kernels::", "at::native::"}) {
    remove_all(&text, part);
  }
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') {
      ++depth;
    } else if (text[i] == '>') {
      --depth;
    } else if (text[i] == '(' && depth == 0) {
      text.resize(i);
    }
  }
  if (text.size() > width) {
    constexpr std::string_view kRest = "...";
    text.resize(width - std::min(width, kRest.size()));
    text += kRest.substr(0, width);
  }
  return text;
}

std::string_view api_call_name(std::string_view name) {
  // A version of the API is an underscore, a v and digits; _ptds and _ptsz are variants.
  const size_t version = name.rfind("_v");
  if (version != std::string_view::npos && version + 2 < name.size() &&
      name.find_first_not_of("0123456789", version + 2) == std::string_view::npos) {
    name = name.substr(0, version);
  }
  for (const std::string_view variant : {"_ptds", "_ptsz"}) {
    if (name.ends_with(variant)) {
      name.remove_suffix(variant.size());
      return api_call_name(name);  // cuMemcpyDtoH_v2_ptds
    }
  }
  return name;
}

bool waits_for_device(std::string_view call) {
  constexpr std::array<std::string_view, 31> kCalls = {"cudaDeviceSynchronize",
                                                       "cudaThreadSynchronize",
                                                       "cudaStreamSynchronize",
                                                       "cudaEventSynchronize",
                                                       "cuCtxSynchronize",
                                                       "cuStreamSynchronize",
                                                       "cuEventSynchronize",
                                                       "cudaMemcpy",
                                                       "cudaMemcpy2D",
                                                       "cudaMemcpy3D",
                                                       "cudaMemcpyPeer",
                                                       "cudaMemcpy3DPeer",
                                                       "cudaMemcpyToSymbol",
                                                       "cudaMemcpyFromSymbol",
                                                       "cudaMemcpyToArray",
                                                       "cudaMemcpyFromArray",
                                                       "cudaMemcpy2DToArray",
                                                       "cudaMemcpy2DFromArray",
                                                       "cuMemcpy",
                                                       "cuMemcpyDtoH",
                                                       "cuMemcpyHtoD",
                                                       "cuMemcpyDtoD",
                                                       "cuMemcpy2D",
                                                       "cuMemcpy3D",
                                                       "cuMemcpyPeer",
                                                       "cudaFree",
                                                       "cudaFreeHost",
                                                       "cudaHostUnregister",
                                                       "cuMemFree",
                                                       "cuMemFreeHost",
                                                       "cuMemHostUnregister"};
  return std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end();
}

}  // namespace kinora::device
