#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
#include "kinora/ops/channel_norm.h"
#include "kinora/ops/convolution.h"
#include "kinora/ops/cuda_launch.h"
#include "kinora/ops/edges.h"

namespace kinora::ops {
namespace gpu_channel_norm_test {

// With gradients ATen's calls compute, without the kernels: both must give the same.
TEST(GpuChannelNormTest, KernelsEqualAtensCalls) {
  if (!cuda_available() || !cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t frames : {0, 3}) {
      std::vector<int64_t> sizes = {2, 40, 33, 17};
      if (frames > 0) {
        sizes.insert(sizes.begin() + 2, frames);
      }
      const auto layout =
          frames > 0 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
      const at::Tensor x =
          ((at::rand(sizes, at::device(at::kCUDA)) - 0.5) * 8.0).to(type).contiguous(layout);
      const at::Tensor scale = at::rand({2, 40}, at::device(at::kCUDA));
      const at::Tensor shift = at::rand({2, 40}, at::device(at::kCUDA));
      const auto results = [&](bool with_gradients) {
        const at::Tensor given = x.detach().clone().set_requires_grad(with_gradients);
        std::vector<at::Tensor> made{channel_moments(given).detach(),
                                     channel_affine(given, scale, shift, false).detach(),
                                     channel_affine(given, scale, shift, true).detach()};
        if (frames > 0) {
          made.push_back(
              channel_affine_with_edges(given, scale, shift, true, {{2, 0}, {1, 1}, {0, 1}})
                  .detach());
        }
        return made;
      };
      const auto expected = results(true);
      const auto got = results(false);
      const double tolerance = type == at::kFloat ? 1e-5 : 8e-3;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].strides(), expected[i].strides());
        const at::Tensor wide = expected[i].to(at::kDouble);
        const double error = (got[i].to(at::kDouble) - wide).abs().max().item<double>();
        EXPECT_LT(error, (i == 0 ? 1e-5 : tolerance) * wide.abs().max().item<double>()) << i;
      }
    }
  }
}

// The same of norms over channels, of clips one behind the other, too.
TEST(GpuChannelNormTest, NormsOverChannelsEqualAtensCalls) {
  if (!cuda_available() || !cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t batch : {1, 2}) {
      const auto clip = [&](int64_t frames) {
        return ((at::rand({batch, 40, frames, 9, 17}, at::device(at::kCUDA)) - 0.5) * 8.0)
            .to(type)
            .contiguous(at::MemoryFormat::ChannelsLast3d);
      };
      const at::Tensor first = clip(2);
      const at::Tensor second = clip(3);
      const at::Tensor weight = at::rand({40, 1, 1, 1}, at::device(at::kCUDA)).to(type);
      const auto results = [&](bool with_gradients) {
        const at::Tensor by = weight.detach().clone().set_requires_grad(with_gradients);
        return std::vector<at::Tensor>{channel_rms(second, by, false).detach(),
                                       channel_rms(second, by, true).detach(),
                                       channel_rms_joined({second}, by, true, 0).detach(),
                                       channel_rms_joined({second}, by, true, 2).detach(),
                                       channel_rms_joined({first, second}, by, true, 1).detach()};
      };
      const auto expected = results(true);
      const auto got = results(false);
      const double tolerance = type == at::kFloat ? 1e-5 : 1.6e-2;  // ATen rounds before SiLU, too
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].sizes(), expected[i].sizes());
        EXPECT_TRUE(got[i].is_contiguous(at::MemoryFormat::ChannelsLast3d));
        const at::Tensor wide = expected[i].to(at::kDouble);
        const double error = (got[i].to(at::kDouble) - wide).abs().max().item<double>();
        EXPECT_LT(error, tolerance * wide.abs().max().item<double>()) << i;
      }
    }
  }
}

TEST(GpuChannelNormTest, PlacesRepeatAsOnTheCpu) {
  if (!cuda_available() || !cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t frames : {1, 2}) {
      const at::Tensor x =
          at::rand({2, 40, 3, 9, 17}).to(type).contiguous(at::MemoryFormat::ChannelsLast3d);
      for (const int64_t above : {0, 1}) {
        const auto repeated = [&](const at::Tensor& given) {
          return repeat_places_with_edges(given, frames, {{frames - 1, 0}, {above, 1}, {0, 0}},
                                          {{2, 0}, {above, 0}, {1, 1}});
        };
        const at::Tensor got = repeated(x.to(at::kCUDA));
        EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast3d));
        EXPECT_TRUE(got.cpu().equal(repeated(x)));
      }
    }
  }
}

// A doubled clip's convolution of the clip itself, in fp32, against the CPU's.
TEST(GpuChannelNormTest, PhasesBecomePlacesAsOnTheCpu) {
  if (!cuda_available() || !cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  const at::NoGradGuard no_grad;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::rand({2, 16, 5, 9, 11}).to(type).to(at::kFloat);
    const at::Tensor weight = (at::rand({24, 16, 3, 3, 3}) - 0.5).to(type).to(at::kFloat);
    const at::Tensor bias = at::rand({24}).to(type).to(at::kFloat);
    const auto on_gpu = [type](const at::Tensor& values) {
      const at::Tensor there = values.to(at::kCUDA, type);
      return values.dim() == 5 ? there.contiguous(at::MemoryFormat::ChannelsLast3d) : there;
    };
    for (const int64_t times : {1, 2}) {
      const at::Tensor want = convolve_doubled_clip(x, weight, bias, times, times - 1);
      const at::Tensor got =
          convolve_doubled_clip(on_gpu(x), on_gpu(weight), on_gpu(bias), times, times - 1);
      EXPECT_EQ(got.sizes(), want.sizes());
      EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast3d));
      const double error = (got.cpu().to(at::kFloat) - want).abs().max().item<double>();
      EXPECT_LT(error, (type == at::kFloat ? 2e-3 : 2e-2) * want.abs().max().item<double>());
    }
  }
}

TEST(GpuChannelNormTest, FactorsOfGroupsEqualAtensCalls) {
  if (!cuda_available() || !cuda::available()) {
    GTEST_SKIP() << "no GPU or no kernels";
  }
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto options = at::device(at::kCUDA);
    at::Tensor sums = at::rand({2, 3, 8}, options.dtype(at::kDouble)) * 10.0;
    sums[1] += 200.0;  // squares
    const at::Tensor weight = at::rand({40}, options).to(type);
    const at::Tensor bias = at::rand({40}, options).to(type);
    const auto got = group_affine(sums, weight, bias, 17, 1e-5, at::kFloat);
    const auto want = group_affine(sums, weight.detach().clone().set_requires_grad(true), bias, 17,
                                   1e-5, at::kFloat);
    EXPECT_LT((got.scale - want.scale).abs().max().item<double>(), 1e-6);
    EXPECT_LT((got.shift - want.shift).abs().max().item<double>(), 1e-6);
  }
}

}  // namespace gpu_channel_norm_test
}  // namespace kinora::ops
