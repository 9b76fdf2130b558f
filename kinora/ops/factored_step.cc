#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/factored_step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops {
namespace {

void check(const at::Tensor& tensor, const char* name, int64_t numel, at::Device device) {
  KINORA_CHECK(tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                   tensor.numel() == numel && tensor.device() == device,
               kShape, "[factored] ", name, " must be contiguous fp32 with ", numel,
               " elements on ", device, ", got ",
               tensor.defined() ? tensor.toString() : "an undefined tensor", " with ",
               tensor.defined() ? tensor.numel() : 0, " elements");
}

void check(const FactoredTensors& tensors, at::Device device) {
  KINORA_CHECK(tensors.grad.defined(), kShape, "[factored] grad must be defined");
  const int64_t count = tensors.grad.numel();
  const int64_t all = std::max<int64_t>(tensors.rows, 1) * tensors.columns;
  KINORA_CHECK(tensors.begin >= 0 && tensors.begin + count <= all, kShape, "[factored] elements ",
               tensors.begin, " to ", tensors.begin + count, " must be of a parameter of ", all);
  check(tensors.grad, "grad", count, device);
  check(tensors.factors, "factors", tensors.rows + tensors.columns, device);
  if (tensors.mean.defined()) {
    check(tensors.mean, "mean", count, device);
  }
  if (tensors.instability.defined() && tensors.instability.numel() > 0) {
    check(tensors.instability, "instability", tensors.rows + tensors.columns, device);
  }
}

float* pointer(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.data_ptr<float>() : nullptr;
}

template <typename Item>
at::Tensor bytes_of(const std::vector<Item>& items, at::Device device) {
  const auto bytes = static_cast<int64_t>(items.size() * sizeof(Item));
  const at::Tensor host = at::empty({bytes}, at::TensorOptions(at::kByte));
  if (bytes > 0) {
    std::memcpy(host.data_ptr<uint8_t>(), items.data(), static_cast<size_t>(bytes));
  }
  return host.to(device);
}

template <typename Item>
const Item* items_in(const at::Tensor& bytes) {
  return reinterpret_cast<const Item*>(bytes.const_data_ptr<uint8_t>());
}

}  // namespace

bool has_factored_kernels(at::Device device) {
  return device.is_cpu() || (device.is_cuda() && cuda::available());
}

FactoredTable::FactoredTable(std::vector<FactoredTensors> parameters)
    : tensors_(std::move(parameters)) {
  KINORA_CHECK(!tensors_.empty(), kShape, "[factored] there must be parameters");
  KINORA_CHECK(tensors_[0].grad.defined(), kShape, "[factored] grad must be defined");
  const at::Device device = tensors_[0].grad.device();
  std::vector<kernels::FactoredPiece> pieces;
  std::vector<kernels::FactoredParameter> entries;
  for (const FactoredTensors& tensors : tensors_) {
    check(tensors, device);
    int64_t done = 0;
    for (kernels::FactoredPiece piece :
         kernels::cut_pieces(tensors.begin, tensors.grad.numel(), tensors.columns)) {
      piece.grad = pointer(tensors.grad) + done;
      piece.mean = tensors.mean.defined() ? pointer(tensors.mean) + done : nullptr;
      piece.parameter = static_cast<int64_t>(entries.size());
      done += piece.rows * piece.columns;
      pieces.push_back(piece);
    }
    entries.push_back({.factors = pointer(tensors.factors),
                       .instability = pointer(tensors.instability),
                       .rows = std::max<int64_t>(tensors.rows, 1),
                       .columns = tensors.columns,
                       .is_matrix = tensors.rows > 0});
  }
  const kernels::FactoredCounts counts = kernels::number_factored(pieces, entries);
  const auto num_parameters = static_cast<int64_t>(entries.size());
  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(device);
  pieces_ = bytes_of(pieces, device);
  parameters_ = bytes_of(entries, device);
  sums_ = at::empty({counts.row_sums + counts.column_sums + counts.tiles}, fp32);
  // Ranks add these up in a step that is skipped, too.
  means_ = at::zeros({counts.means}, fp32);
  mean_squares_ = at::zeros({num_parameters}, fp32);
  auto* sums = sums_.data_ptr<float>();
  table_ = {.pieces = items_in<kernels::FactoredPiece>(pieces_),
            .num_pieces = static_cast<int64_t>(pieces.size()),
            .parameters = items_in<kernels::FactoredParameter>(parameters_),
            .num_parameters = num_parameters,
            .counts = counts,
            .row_sums = sums,
            .column_sums = sums + counts.row_sums,
            .tile_sums = sums + counts.row_sums + counts.column_sums,
            .means = means_.data_ptr<float>(),
            .mean_squares = mean_squares_.data_ptr<float>()};
}

void run_pass(kernels::FactoredPass pass, const FactoredTable& table,
              const kernels::FactoredRule& rule, const at::Tensor& control) {
  KINORA_CHECK(control.device() == table.means().device(), kShape,
               "[factored] the control block must be on ", table.means().device(), ", got ",
               control.device());
  if (control.is_cuda()) {
    return cuda::run_pass(pass, table.table(), rule, control);
  }
  const auto& decisions =
      *reinterpret_cast<const kernels::StepControl*>(control.const_data_ptr<uint8_t>());
  const int64_t grain = kernels::is_of_means(pass) ? kernels::kFactoredThreads : 1;
  at::parallel_for(0, kernels::num_items(pass, table.table()), grain,
                   [&](int64_t begin, int64_t end) {
                     kernels::run_pass(pass, table.table(), rule, decisions, begin, end);
                   });
}

}  // namespace kinora::ops
