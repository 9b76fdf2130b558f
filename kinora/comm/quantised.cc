#include "kinora/comm/quantised.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kinora/comm/cuda_launch.h"
#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::comm {
namespace {

// R rows of quantised elements, P elements from a row to the next: n rounded up to whole blocks.

/// The kernel takes rows of blocks by sixteens.
constexpr int64_t kQuantisedRows = 16;
constexpr int64_t kGranule = kQuantisedRows * kernels::kScaleBlock;

bool is_float(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16 ||
         tensor.scalar_type() == at::kHalf;
}

/// `whole` has `num_parts` times the elements of `part`.
void check_pair(const char* operation, const at::Tensor& whole, const at::Tensor& part,
                int64_t num_parts) {
  for (const at::Tensor& tensor : {whole, part}) {
    KINORA_CHECK(tensor.defined() && tensor.is_contiguous() && is_float(tensor), kShape, "[",
                 operation, "] tensors must be contiguous float32, bfloat16 or float16, got ",
                 tensor.defined() ? at::toString(tensor.scalar_type()) : "an undefined one",
                 tensor.defined() && !tensor.is_contiguous() ? ", not contiguous." : ".");
  }
  KINORA_CHECK(whole.device() == part.device(), kShape, "[", operation,
               "] both tensors must be on one device, got ", whole.device(), " and ", part.device(),
               '.');
  KINORA_CHECK(whole.numel() == num_parts * part.numel(), kShape, "[", operation,
               "] the whole must have ", num_parts, " times the ", part.numel(),
               " elements of a part, got ", whole.numel(), '.');
}

/// Block-scaled numbers, whole granules of them.
struct Quantised {
  at::Tensor data;     // uint8
  at::Tensor factors;  // fp32, one for each 128
};

/// Elements [first, first + numel of `in`) of `to`; `in`: whole granules.
void quantise_granules(const at::Tensor& in, const Quantised& to, int64_t first) {
  kernels::BlockQuantise call;
  call.rows = in.numel() / kernels::kScaleBlock;
  call.width = kernels::kScaleBlock;  // so that the factors come in the order of the blocks
  call.type = dtype_of(in);
  call.in = in.const_data_ptr();
  call.data = to.data.data_ptr<uint8_t>() + first;
  call.factors = to.factors.data_ptr<float>() + first / kernels::kScaleBlock;
  if (in.is_cuda()) {
    cuda::block_quantise(call, in.device());
  } else {
    kernels::block_quantise(call);
  }
}

/// Of a flat tensor, with zeros behind its end.
Quantised quantise(const at::Tensor& in) {
  const int64_t size = round_up(in.numel(), kGranule);
  Quantised result = {at::empty({size}, in.options().dtype(at::kByte)),
                      at::empty({size / kernels::kScaleBlock}, in.options().dtype(at::kFloat))};
  const bool aligned = reinterpret_cast<uintptr_t>(in.const_data_ptr()) % 16 == 0;
  const int64_t whole = aligned ? in.numel() / kGranule * kGranule : 0;
  if (whole > 0) {
    quantise_granules(in.narrow(0, 0, whole), result, 0);
  }
  if (whole < size) {
    const at::Tensor rest = at::zeros({size - whole}, in.options());
    rest.narrow(0, 0, in.numel() - whole).copy_(in.narrow(0, whole, in.numel() - whole));
    quantise_granules(rest, result, whole);
  }
  return result;
}

/// `output` [sums * count] = scale * the sums of `terms` quantised rows of `pitch` each.
void add_up(const Quantised& rows, int64_t sums, int64_t terms, int64_t pitch, double scale,
            const at::Tensor& output) {
  kernels::BlockSums call;
  call.sums = sums;
  call.terms = terms;
  call.count = output.numel() / sums;
  call.pitch = pitch;
  call.data = rows.data.const_data_ptr<uint8_t>();
  call.factors = rows.factors.const_data_ptr<float>();
  call.scale = static_cast<float>(scale);
  call.type = dtype_of(output);
  call.out = output.data_ptr();
  if (output.is_cuda()) {
    cuda::block_sums(call, output.device());
  } else {
    kernels::block_sums(call);
  }
}

Quantised empty_rows(const Group& group, int64_t pitch, const Quantised& like) {
  return {at::empty({group.size() * pitch}, like.data.options()),
          at::empty({group.size() * pitch / kernels::kScaleBlock}, like.factors.options())};
}

}  // namespace

void reduce_scatter_fp8(const Group& group, const at::Tensor& output, const at::Tensor& input,
                        Reduction reduction) {
  const at::NoGradGuard no_grad;
  check_pair("reduce_scatter_fp8", input, output, group.size());
  KINORA_CHECK(reduction != Reduction::kMax, kConfig,
               "[reduce_scatter_fp8] makes sums and means, got a maximum.");
  const at::Tensor flat = input.view({-1});
  if (group.size() == 1) {
    output.view({-1}).copy_(flat);
    return;
  }
  if (output.numel() == 0) {
    return;
  }
  // A block must not reach into the next rank's part.
  const int64_t count = output.numel();
  const int64_t pitch = round_up(count, kernels::kScaleBlock);
  at::Tensor parts = flat;
  if (pitch != count) {
    parts = at::zeros({group.size(), pitch}, input.options());
    parts.narrow(1, 0, count).copy_(flat.view({group.size(), count}));
    parts = parts.view({-1});
  }
  const Quantised mine = quantise(parts);
  const Quantised rows = empty_rows(group, pitch, mine);
  const int64_t blocks = rows.factors.numel();
  const Work works[] = {
      group.all_to_all_async(rows.data, mine.data.narrow(0, 0, rows.data.numel())),
      group.all_to_all_async(rows.factors, mine.factors.narrow(0, 0, blocks))};
  for (const Work& work : works) {
    work.wait();
  }
  const double scale =
      reduction == Reduction::kMean ? 1.0 / static_cast<double>(group.size()) : 1.0;
  add_up(rows, 1, group.size(), pitch, scale, output);
}

void all_gather_fp8(const Group& group, const at::Tensor& output, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  check_pair("all_gather_fp8", output, input, group.size());
  const at::Tensor flat = input.view({-1});
  if (group.size() == 1) {
    output.view({-1}).copy_(flat);
    return;
  }
  if (input.numel() == 0) {
    return;
  }
  const int64_t pitch = round_up(input.numel(), kernels::kScaleBlock);
  const Quantised mine = quantise(flat);
  const Quantised rows = empty_rows(group, pitch, mine);
  const Work works[] = {group.all_gather_async(rows.data, mine.data.narrow(0, 0, pitch)),
                        group.all_gather_async(
                            rows.factors, mine.factors.narrow(0, 0, pitch / kernels::kScaleBlock))};
  for (const Work& work : works) {
    work.wait();
  }
  add_up(rows, group.size(), 1, pitch, 1.0, output);
}

}  // namespace kinora::comm
