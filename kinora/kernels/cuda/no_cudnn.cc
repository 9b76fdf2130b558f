// cuDNN's attention in a build without cudnn-frontend's headers: supports nothing, and says so.
#include "kinora/core/error.h"
#include "kinora/kernels/cuda/cudnn_attention.h"

namespace kinora::kernels::cuda {
namespace {

constexpr const char* kReason = "this build has no cudnn-frontend (scripts/setup.sh installs it)";

}  // namespace

class CudnnAttention::Impl {};

CudnnAttention::CudnnAttention(bool /*deterministic*/) {}

CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::unsupported_reason(const AttentionForward& /*call*/) {
  return kReason;
}

std::string CudnnAttention::unsupported_reason(const AttentionBackward& /*call*/) {
  return kReason;
}

size_t CudnnAttention::workspace_bytes(const AttentionForward& /*call*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

size_t CudnnAttention::workspace_bytes(const AttentionBackward& /*call*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

void CudnnAttention::take_smallest(const AttentionForward& /*call*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

void CudnnAttention::take_smallest(const AttentionBackward& /*call*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

void CudnnAttention::forward(const AttentionForward& /*call*/, void* /*workspace*/,
                             cudaStream_t /*stream*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

void CudnnAttention::backward(const AttentionBackward& /*call*/, void* /*workspace*/,
                              cudaStream_t /*stream*/) {
  KINORA_UNREACHABLE("[cudnn_attention] ", kReason);
}

}  // namespace kinora::kernels::cuda
