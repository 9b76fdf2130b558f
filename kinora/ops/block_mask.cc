#include "kinora/ops/block_mask.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::ops {
namespace {

/// Places of the columns that are set, row after row, and where each row's begin.
std::array<at::Tensor, 2> lists_of(const at::Tensor& attended, at::Device device) {
  const at::Tensor counts = attended.sum(1);
  const at::Tensor offsets = at::cat({at::zeros({1}, counts.options()), counts.cumsum(0)});
  const auto as_int = at::device(device).dtype(at::kInt);
  return {offsets.to(as_int), attended.nonzero().select(1, 1).contiguous().to(as_int)};
}

/// [blocks, ..] -> [rows, ..].
at::Tensor rows_of_blocks(const at::Tensor& blocks, int64_t rows) {
  KINORA_CHECK(ceil_div(rows, kernels::BlockMask::kRows) == blocks.size(0), kShape, "[block_mask] ",
               rows, " rows are not ", blocks.size(0), " blocks of ", kernels::BlockMask::kRows);
  return blocks.repeat_interleave(kernels::BlockMask::kRows, 0).narrow(0, 0, rows);
}

}  // namespace

BlockMask::BlockMask(const at::Tensor& attended, at::Device device) {
  KINORA_CHECK(
      attended.dim() == 2 && attended.numel() > 0 && attended.scalar_type() == at::kBool &&
          attended.any(1).all().item<bool>(),
      kShape,
      "[block_mask] attended must be bool [blocks of queries, blocks of keys] with a block "
      "of keys for each block of queries, got ",
      attended.scalar_type(), " ", attended.sizes());
  const at::Tensor here = attended.cpu();
  attended_ = attended.to(device);
  const std::array<at::Tensor, 2> keys = lists_of(here, device);
  const std::array<at::Tensor, 2> queries = lists_of(here.t().contiguous(), device);
  key_offsets_ = keys[0];
  key_blocks_ = keys[1];
  query_offsets_ = queries[0];
  query_blocks_ = queries[1];
  density_ = static_cast<double>(key_blocks_.numel()) / static_cast<double>(here.numel());
}

kernels::BlockMask BlockMask::view() const {
  return {.key_offsets = key_offsets_.const_data_ptr<int32_t>(),
          .key_blocks = key_blocks_.const_data_ptr<int32_t>(),
          .query_offsets = query_offsets_.const_data_ptr<int32_t>(),
          .query_blocks = query_blocks_.const_data_ptr<int32_t>()};
}

at::Tensor BlockMask::of_rows(int64_t queries, int64_t keys) const {
  return rows_of_blocks(rows_of_blocks(attended_, queries).t(), keys).t();
}

}  // namespace kinora::ops
