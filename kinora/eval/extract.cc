#include "kinora/eval/extract.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::eval {
namespace {

struct Prepared {
  at::Tensor inputs;  ///< [B, ...]
  at::Tensor labels;  ///< [B]
};

/// Samples [first, end), read and prepared by all threads.
Prepared prepare(const SampleSet& set, const FeatureNetwork& network, int64_t first, int64_t end) {
  std::vector<at::Tensor> inputs(static_cast<size_t>(end - first));
  Prepared result{.inputs = {}, .labels = at::empty({end - first}, at::kLong)};
  auto* const labels = result.labels.mutable_data_ptr<int64_t>();
  at::parallel_for(0, end - first, 1, [&](int64_t begin, int64_t stop) {
    for (int64_t i = begin; i < stop; ++i) {
      const JudgedSample sample = set.read(first + i);
      inputs[static_cast<size_t>(i)] = network.prepare(sample.pixels);
      labels[i] = sample.label;
    }
  });
  for (size_t i = 1; i < inputs.size(); ++i) {
    KINORA_CHECK(inputs[i].sizes() == inputs[0].sizes(), kShape,
                 "[eval] samples must be of one size, got ", inputs[0].sizes(), " of ",
                 set.name(first), " and ", inputs[i].sizes(), " of ",
                 set.name(first + static_cast<int64_t>(i)),
                 ". Hint: --input-size resizes them for the network");
  }
  result.inputs = at::stack(inputs);
  return result;
}

/// The rows of all ranks, rank by rank. `rows`: what each of them has.
at::Tensor gathered(const at::Tensor& own, const std::vector<int64_t>& rows,
                    const comm::Group& group) {
  if (group.size() == 1) {
    return own;
  }
  const int64_t most = *std::max_element(rows.begin(), rows.end());
  at::Tensor padded = at::zeros({most, own.size(1)}, own.options());
  padded.narrow(0, 0, own.size(0)).copy_(own);
  const at::Tensor all = at::empty({group.size() * most, own.size(1)}, own.options());
  group.all_gather(all, padded);
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, rows[static_cast<size_t>(rank)]));
  }
  return at::cat(parts);
}

/// Calls `take` with the network's output of each batch of this rank's share. Returns how many
/// samples each rank has.
std::vector<int64_t> for_each_batch(
    const SampleSet& set, const FeatureNetwork& network, const comm::Group& group,
    const ExtractOptions& options,
    const std::function<void(const NetworkOutput& output, const at::Tensor& labels)>& take) {
  const at::NoGradGuard no_grad;
  const int64_t num_batches = ceil_div(set.size(), options.batch);
  KINORA_CHECK(num_batches >= group.size(), kConfig, "[eval] ", group.size(),
               " ranks need as many batches, got ", num_batches, " of ", set.size(),
               " samples. Hint: fewer ranks, or a smaller --batch");
  // The first sample of each rank's share, and the end of the last.
  std::vector<int64_t> bounds;
  for (int64_t rank = 0; rank <= group.size(); ++rank) {
    bounds.push_back(std::min(set.size(), rank * num_batches / group.size() * options.batch));
  }
  std::vector<int64_t> rows;
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) {
    rows.push_back(bounds[rank + 1] - bounds[rank]);
  }
  const auto own = static_cast<size_t>(group.rank());
  if (options.progress) {
    options.progress(0, rows[own]);
  }
  for (int64_t first = bounds[own]; first < bounds[own + 1]; first += options.batch) {
    const int64_t end = std::min(first + options.batch, bounds[own + 1]);
    const Prepared batch = prepare(set, network, first, end);
    const NetworkOutput output = network.forward(batch.inputs.to(options.device));
    KINORA_CHECK(at::isfinite(output.features).all().item<bool>(), kShape,
                 "[eval] features must be finite, got others of the samples from ", set.name(first),
                 " to ", set.name(end - 1));
    take(output, batch.labels);
    if (options.progress) {
      options.progress(end - bounds[own], rows[own]);
    }
  }
  return rows;
}

}  // namespace

FeatureTable extract(const SampleSet& set, const FeatureNetwork& network, const comm::Group& group,
                     const ExtractOptions& options) {
  std::vector<at::Tensor> features;
  std::vector<at::Tensor> logits;
  std::vector<at::Tensor> labels;
  const std::vector<int64_t> rows =
      for_each_batch(set, network, group, options,
                     [&](const NetworkOutput& output, const at::Tensor& labels_of_batch) {
                       features.push_back(output.features);
                       if (output.logits.defined()) {
                         logits.push_back(output.logits);
                       }
                       labels.push_back(labels_of_batch.unsqueeze(1));
                     });
  const auto joined = [&](const std::vector<at::Tensor>& parts) {
    return gathered(at::cat(parts), rows, group).to(at::kCPU);
  };
  FeatureTable table{.features = joined(features), .logits = {}, .labels = {}};
  if (!logits.empty()) {
    table.logits = joined(logits);
  }
  table.labels = gathered(at::cat(labels).to(options.device), rows, group).to(at::kCPU).squeeze(1);
  return table;
}

Gaussian extract_gaussian(const SampleSet& set, const FeatureNetwork& network,
                          const comm::Group& group, const ExtractOptions& options) {
  std::optional<FeatureStatistics> statistics;
  (void)for_each_batch(set, network, group, options,
                       [&](const NetworkOutput& output, const at::Tensor& /*labels*/) {
                         if (!statistics) {
                           statistics.emplace(output.features.size(1));
                         }
                         statistics->add(output.features);
                       });
  statistics->add_all(group, options.device);
  return statistics->gaussian();
}

}  // namespace kinora::eval
