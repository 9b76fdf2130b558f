#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "kinora/kernels/attention.h"

/// cuDNN's fused attention on strided heads, without copies.
namespace kinora::kernels::cuda {

/// Keeps cuDNN's handle and the plans of the shapes seen. Not safe for two threads at once.
class CudnnAttention {
 public:
  /// deterministic: only plans that give the same bits each time.
  explicit CudnnAttention(bool deterministic);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Empty if cuDNN has plans for the call, forward or backward; else its reason.
  [[nodiscard]] std::string unsupported_reason(const AttentionForward& call);
  [[nodiscard]] std::string unsupported_reason(const AttentionBackward& call);

  [[nodiscard]] size_t workspace_bytes(const AttentionForward& call);
  [[nodiscard]] size_t workspace_bytes(const AttentionBackward& call);

  /// Takes the plan with the least workspace, without timing: for where there is no memory to time
  /// them all.
  void take_smallest(const AttentionForward& call);
  void take_smallest(const AttentionBackward& call);

  /// Enqueue. Plans are made at the first call of a shape; throw kInternal where cuDNN fails.
  /// The first launch of a shape outside of a CUDA graph's capture runs the call several times and
  /// waits, to choose the fastest plan (not if deterministic), so no output may be an input too.
  /// workspace: of workspace_bytes, asked for since the last first launch of the shape, aligned to
  /// 256 bytes. A launch may be captured; this object must outlive the graph.
  void forward(const AttentionForward& call, void* workspace, cudaStream_t stream);
  void backward(const AttentionBackward& call, void* workspace, cudaStream_t stream);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::kernels::cuda
