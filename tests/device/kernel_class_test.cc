#include "kinora/device/kernel_class.h"

#include <gtest/gtest.h>

#include <vector>

namespace kinora::device {
namespace kernel_class_test {

struct Named {
  const char* name;
  KernelClass kind;
};

// Names as the profilers of an H200 print them, and our own kernels'.
const std::vector<Named> kKernels = {
    {"nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_TNN", KernelClass::kGemm},
    {"void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true>(cublasGemmSmallNParams)",
     KernelClass::kGemm},
    {"sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_gelu", KernelClass::kGemm},
    {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>",
     KernelClass::kGemm},
    {"void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(...)",
     KernelClass::kGemm},
    {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<96, 128, 64, 4, false, false, "
     "cutlass::bfloat16_t>>(pytorch_flash::Flash_fwd_params)",
     KernelClass::kAttention},
    {"cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x64x128",
     KernelClass::kAttention},
    {"void kinora::kernels::cuda::attention::forward_kernel<72>(ForwardPlan)",
     KernelClass::kAttention},
    {"void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 8, false>()",
     KernelClass::kAttention},
    {"void kinora::kernels::cuda::(anonymous namespace)::forward_kernel<__nv_bfloat16, 4>("
     "kinora::kernels::ResidualNormForward, kinora::kernels::cuda::ForwardPlan)",
     KernelClass::kNorm},
    {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
     KernelClass::kNorm},
    {"void kinora::kernels::cuda::(anonymous namespace)::tile_kernel<1, __half>(Call, long)",
     KernelClass::kActivation},
    {"void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)>",
     KernelClass::kActivation},
    {"void kinora::kernels::cuda::(anonymous namespace)::column_sums_kernel<float>(float*)",
     KernelClass::kReduction},
    {"kinora::kernels::cuda::(anonymous namespace)::add_partial_sums_kernel(float const*, long)",
     KernelClass::kReduction},
    {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)",
     KernelClass::kReduction},
    {"kinora::kernels::cuda::(anonymous namespace)::update_weights_kernel(UpdateBuffers)",
     KernelClass::kOptimizer},
    {"kinora::kernels::cuda::(anonymous namespace)::partial_sums_kernel(float const*, long)",
     KernelClass::kOptimizer},
    {"kinora::kernels::cuda::(anonymous namespace)::random_fill_kernel(float*, long)",
     KernelClass::kRandom},
    {"void at::native::vectorized_elementwise_kernel<4, "
     "at::native::bfloat16_copy_kernel_cuda(...)>",
     KernelClass::kCopy},
    {"kinora::kernels::cuda::(anonymous namespace)::cast_kernel(float const*)", KernelClass::kCopy},
    {"void kinora::kernels::cuda::flow_loss_kernel<float>(float const*)", KernelClass::kLoss},
    {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
     KernelClass::kElementwise},
    {"someone_elses_kernel(int)", KernelClass::kOther},
};

TEST(KernelClassTest, KnowsTheKernelsOfAStep) {
  for (const Named& kernel : kKernels) {
    EXPECT_EQ(to_string(classify_kernel(kernel.name)), to_string(kernel.kind)) << kernel.name;
  }
}

TEST(KernelClassTest, ShortNamesLeaveOutWhatSaysNothing) {
  EXPECT_EQ(short_kernel_name("void kinora::kernels::cuda::(anonymous namespace)::"
                              "forward_kernel<float, (int)4>(Plan<int>, long)",
                              100),
            "cuda::forward_kernel<float, (int)4>");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_256x128", 100), "nvjet_sm90_tst_256x128");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_256x128", 10), "nvjet_s...");
  EXPECT_EQ(short_kernel_name("abc", 2), "..");
  EXPECT_EQ(short_kernel_name("", 10), "");
}

TEST(KernelClassTest, CallsLoseTheirVersions) {
  EXPECT_EQ(api_call_name("cudaStreamSynchronize_v3020"), "cudaStreamSynchronize");
  EXPECT_EQ(api_call_name("cudaMemcpy_ptds_v7000"), "cudaMemcpy");
  EXPECT_EQ(api_call_name("cuMemcpyDtoH_v2_ptds"), "cuMemcpyDtoH");
  EXPECT_EQ(api_call_name("cuStreamSynchronize_ptsz"), "cuStreamSynchronize");
  EXPECT_EQ(api_call_name("cuStreamSynchronize"), "cuStreamSynchronize");
  EXPECT_EQ(api_call_name("cudaVery_v"), "cudaVery_v");
}

TEST(KernelClassTest, KnowsWhichCallsWait) {
  for (const char* call : {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
                           "cudaMemcpy", "cuMemcpyDtoH", "cuCtxSynchronize", "cudaFree"}) {
    EXPECT_TRUE(waits_for_device(call)) << call;
  }
  for (const char* call : {"cudaMemcpyAsync", "cudaLaunchKernel", "cudaGraphLaunch",
                           "cudaEventQuery", "cudaStreamWaitEvent", "cudaMalloc", ""}) {
    EXPECT_FALSE(waits_for_device(call)) << call;
  }
}

}  // namespace kernel_class_test
}  // namespace kinora::device
