#include "kinora/nn/bands.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/ops/recompute.h"

namespace kinora::nn {
namespace {

constexpr int64_t kRowsDim = -2;

/// Backward computes a layer again and holds its values, their gradients and one temporary.
constexpr int64_t kBackwardWork = 3;

at::Tensor to_host(const at::Tensor& band) {
  // Pinned, so that the copy runs at the bus's speed; not asynchronous, since the host reads parts.
  return at::empty_like(band, band.options().device(at::kCPU).pinned_memory(band.is_cuda()))
      .copy_(band);
}

/// Rows [from, to) of neighbouring parts, the first of which begins at row `begin`.
at::Tensor gathered(const std::vector<at::Tensor>& parts, int64_t begin, int64_t from, int64_t to,
                    c10::Device device) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& part : parts) {
    const int64_t end = begin + part.size(kRowsDim);
    const int64_t first = std::max(from, begin);
    const int64_t last = std::min(to, end);
    if (first < last) {
      pieces.push_back(part.narrow(kRowsDim, first - begin, last - first).to(device));
    }
    begin = end;
  }
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, kRowsDim);
}

/// Bytes that the stage takes at most, in so many bands, but for what backward keeps.
int64_t peak_of(const BandStage& stage, int64_t bands, bool on_host, bool with_gradients) {
  const int64_t units_a_band = (stage.units + bands - 1) / bands;
  int64_t peak = 0;
  for (const BandNeed& need : stage.needs) {
    const int64_t rows = need.rows / stage.units * units_a_band + 2 * need.halo;
    const bool gathers = (with_gradients || on_host) && need.gathered_work > 0;
    const int64_t work =
        (gathers ? need.gathered_work : need.work) * (with_gradients ? kBackwardWork : 1);
    // A layer's work is counted by rows, of which a band next to an edge sees fewer.
    peak =
        std::max(peak, (on_host ? 0 : need.stored) + work / need.rows * std::min(rows, need.rows));
  }
  return peak;
}

}  // namespace

Bands::Bands(const at::Tensor& x, const BandPlan& plan) : plan_(plan), device_(x.device()) {
  const std::vector<int64_t> begins = borders(x.size(kRowsDim));
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    add(begins.size() == 2 ? x : x.narrow(kRowsDim, begins[i], begins[i + 1] - begins[i]).clone());
  }
}

std::vector<int64_t> Bands::borders(int64_t rows) const {
  const BandPlan::Stage& stage = plan_.stages[stage_];
  const int64_t units = stage.units > 0 ? stage.units : rows;
  KINORA_CHECK(units > 0 && rows % units == 0, kInternal, "[bands] rows must be a multiple of ",
               units, ", got ", rows);
  const int64_t count = std::min(stage.bands, units);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= count; ++i) {
    begins.push_back(units * i / count * (rows / units));
  }
  return begins;
}

Bands Bands::next_stage() && {
  ++stage_;
  KINORA_CHECK(stage_ < plan_.stages.size(), kInternal, "[bands] the plan has ",
               plan_.stages.size(), " stages");
  const std::vector<int64_t> begins = borders(num_rows());
  if (begins == begins_) {
    return std::move(*this);
  }
  Bands cut = like();
  size_t first = 0;  // of the bands that are still needed
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const int64_t from = begins[i];
    const int64_t to = begins[i + 1];
    size_t last = first;
    while (end(last) < to) {
      ++last;
    }
    const at::Tensor rows = gathered({bands_.begin() + static_cast<std::ptrdiff_t>(first),
                                      bands_.begin() + static_cast<std::ptrdiff_t>(last) + 1},
                                     begin(first), from, to, device_);
    const bool is_part = first == last && to - from < end(first) - begin(first);
    cut.add(is_part ? rows.clone() : rows);
    for (; first < size() && end(first) <= to; ++first) {
      bands_[first] = at::Tensor();
    }
  }
  return cut;
}

Bands Bands::like() const {
  Bands empty;
  empty.plan_ = plan_;
  empty.stage_ = stage_;
  empty.device_ = device_;
  return empty;
}

void Bands::add(const at::Tensor& band) {
  begins_.push_back(begins_.back() + band.size(kRowsDim));
  sizes_ = band.sizes().vec();
  bands_.push_back(plan_.on_host ? to_host(band) : band);
}

bool Bands::may_overwrite() const {
  return !at::GradMode::is_enabled() && !plan_.on_host &&
         std::all_of(bands_.begin(), bands_.end(), [](const at::Tensor& band) {
           return band.use_count() == 1 && band.storage().use_count() == 1;
         });
}

int64_t Bands::group_elements(int64_t groups) const {
  int64_t elements = begins_.back();
  for (size_t dim = 1; dim < sizes_.size(); ++dim) {
    elements *= dim == sizes_.size() - 2 ? 1 : sizes_[dim];
  }
  return elements / groups;
}

at::Tensor Bands::rows(int64_t from, int64_t to) const {
  size_t first = 0;
  while (end(first) <= from) {
    ++first;
  }
  size_t last = first;
  while (end(last) < to) {
    ++last;
  }
  return gathered({bands_.begin() + static_cast<std::ptrdiff_t>(first),
                   bands_.begin() + static_cast<std::ptrdiff_t>(last) + 1},
                  begin(first), from, to, device_);
}

at::Tensor Bands::computed(size_t i, std::array<int64_t, 2> halo, const Layer& layer,
                           const std::vector<at::Tensor>& also) const {
  const int64_t from = std::max<int64_t>(0, begin(i) - halo[0]);
  const int64_t to = std::min(begins_.back(), end(i) + halo[1]);
  size_t first = i;
  while (begin(first) > from) {
    --first;
  }
  size_t last = i;
  while (end(last) < to) {
    ++last;
  }
  // What is kept for backward are the bands themselves, not copies of rows.
  std::vector<at::Tensor> inputs(bands_.begin() + static_cast<std::ptrdiff_t>(first),
                                 bands_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  const size_t parts = inputs.size();
  inputs.insert(inputs.end(), also.begin(), also.end());
  const std::array<int64_t, 2> missing = {from - (begin(i) - halo[0]), end(i) + halo[1] - to};
  const auto body = [=, device = device_,
                     start = begin(first)](const std::vector<at::Tensor>& values) {
    const auto others = values.begin() + static_cast<std::ptrdiff_t>(parts);
    std::vector<at::Tensor> rest;
    for (auto value = others; value != values.end(); ++value) {
      rest.push_back(value->to(device));
    }
    const at::Tensor x = gathered({values.begin(), others}, start, from, to, device);
    return layer({x, missing}, rest);
  };
  return plan_.recompute ? ops::recompute(body, inputs) : body(inputs);
}

void Bands::release(size_t i, std::array<int64_t, 2> halo) {
  for (size_t j = 0; j <= i && end(j) <= end(i) - halo[0]; ++j) {
    bands_[j] = at::Tensor();
  }
}

Bands over_bands(Bands x, std::array<int64_t, 2> halo, const Bands::Layer& layer,
                 const std::vector<at::Tensor>& also) {
  Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    result.add(x.computed(i, halo, layer, also));
    x.release(i, halo);
  }
  return result;
}

Bands over_whole(const Bands& x, const std::function<at::Tensor(const at::Tensor&)>& layer) {
  const at::Tensor made = x.computed(  // rows far around the first band are all
      0, {0, x.num_rows()},
      [layer](const Rows& rows, const auto& /*also*/) { return layer(rows.x); });
  Bands result = x.like();
  int64_t begin = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t rows = x[i].size(kRowsDim);
    result.add(made.narrow(kRowsDim, begin, rows));
    begin += rows;
  }
  return result;
}

at::Tensor band_sums(const Bands& x, const GroupNorm& norm) {
  at::Tensor sums;
  for (size_t i = 0; i < x.size(); ++i) {
    const at::Tensor part = x.computed(
        i, {0, 0}, [&norm](const Rows& rows, const auto& /*also*/) { return norm.sums(rows.x); });
    sums = sums.defined() ? sums + part : part;
  }
  return sums;
}

bool fits_whole(const BandStage& stage, int64_t budget) {
  return budget == 0 || peak_of(stage, 1, /*on_host=*/false, /*with_gradients=*/false) <= budget;
}

BandPlan plan_bands(const std::vector<BandStage>& stages, int64_t budget, bool with_gradients) {
  BandPlan plan;
  plan.stages.clear();
  int64_t kept = 0;
  for (const BandStage& stage : stages) {
    plan.stages.push_back({.bands = 1, .units = stage.units});
    for (const BandNeed& need : stage.needs) {
      kept += with_gradients ? need.kept : 0;
    }
  }
  if (budget == 0) {
    return plan;
  }
  plan.recompute = true;
  int64_t least = 0;
  for (const bool on_host : {false, true}) {
    plan.on_host = on_host;
    least = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      const auto bytes = [&](int64_t bands) {
        return peak_of(stages[i], bands, on_host, with_gradients) + (on_host ? 0 : kept);
      };
      int64_t& bands = plan.stages[i].bands;
      while (bytes(bands) > budget && bands < stages[i].units) {
        ++bands;
      }
      least = std::max(least, bytes(bands));
    }
    if (least <= budget) {
      return plan;
    }
    for (BandPlan::Stage& stage : plan.stages) {
      stage.bands = 1;
    }
  }
  throw_error(ErrorKind::kConfig, "[autoencoder] the memory budget must be ", least,
              " bytes or more for pictures of this size, got ", budget,
              ". Hint: a smaller picture or a larger budget.");
}

}  // namespace kinora::nn
