#include "kinora/nn/bands.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kinora/comm/differentiable.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/ops/edges.h"
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

/// Ranks send each other the channels of a place together, however a band lies: [B, (T,) H, W, C].
at::Tensor by_place(const at::Tensor& band) {
  return band.movedim(1, -1);
}

/// The reverse; so it stays in memory.
at::Tensor by_channel(const at::Tensor& sent) {
  return sent.movedim(-1, 1);
}

using Exchange = std::function<at::Tensor(const at::Tensor& x)>;

/// forward(x), whose gradient is `backward` of that of the result. All ranks call it, and so they
/// do in backward: what came before is an input.
at::Tensor exchanged(const BandPlan& plan, const at::Tensor& x, const Exchange& forward,
                     const Exchange& backward) {
  if (!at::GradMode::is_enabled()) {
    return forward(x);
  }
  std::vector<at::Tensor> inputs = {x};
  if (plan.last_exchange->defined()) {
    inputs.push_back(*plan.last_exchange);
  }
  const comm::Differentiable function = {
      [forward](const std::vector<at::Tensor>& given, std::vector<at::Tensor>* /*saved*/) {
        return forward(given[0]);
      },
      [backward, count = inputs.size()](const std::vector<at::Tensor>& /*saved*/,
                                        const at::Tensor& gradient) {
        std::vector<at::Tensor> gradients(count);
        gradients[0] = backward(gradient);
        return gradients;
      }};
  at::Tensor made = function(inputs);
  *plan.last_exchange = made.narrow(0, 0, 0).clone();
  return made;
}

/// A contiguous tensor as groups send it: of any type, also fp64, which they do not add.
at::Tensor bytes_of(const at::Tensor& x) {
  return x.flatten().view(at::kByte);
}

/// What another rank has sent, to which x goes: the step of a ring.
at::Tensor passed_on(const comm::Group& ranks, const at::Tensor& x, int64_t from, int64_t to) {
  const at::Tensor sent = by_place(x).contiguous();
  const at::Tensor got = at::empty_like(sent);
  ranks.exchange(bytes_of(got), from, bytes_of(sent), to);
  return by_channel(got);
}

/// The sum over ranks, by rank.
at::Tensor sum_over(const comm::Group& ranks, const at::Tensor& x) {
  const at::Tensor own = x.contiguous();
  const at::Tensor all = at::empty({ranks.size(), own.numel()}, own.options());
  ranks.all_gather(bytes_of(all), bytes_of(own));
  return all.sum(0).view(x.sizes());
}

/// Units of a whole of so many rows.
int64_t units_of(const BandPlan::Stage& stage, int64_t rows) {
  const int64_t units = stage.units > 0 ? stage.units : rows;
  KINORA_CHECK(units > 0 && rows % units == 0, kInternal, "[bands] rows must be a multiple of ",
               units, ", got ", rows);
  return units;
}

/// How many rows each rank has of so many units: whole ones of the stage with the fewest, so that
/// it has the same rows in all stages.
std::vector<int64_t> rows_of_ranks(const BandPlan& plan, int64_t units, int64_t rows_a_unit) {
  const int64_t size = plan.ranks.size();
  int64_t least = units;
  for (const BandPlan::Stage& stage : plan.stages) {
    least = size > 1 && stage.units > 0 ? std::min(least, stage.units) : least;
  }
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < size; ++rank) {
    counts.push_back((least * (rank + 1) / size - least * rank / size) * (units / least) *
                     rows_a_unit);
  }
  return counts;
}

int64_t first_of(const std::vector<int64_t>& counts, int64_t rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
}

/// The whole, of the rows of each rank, which has `counts` of them.
at::Tensor gathered_over(const comm::Group& ranks, const std::vector<int64_t>& counts,
                         const at::Tensor& own) {
  std::vector<int64_t> shape = by_place(own).sizes().vec();
  shape[shape.size() - 3] = *std::ranges::max_element(counts);
  const at::Tensor padded = at::empty(shape, own.options());
  by_channel(padded).narrow(kRowsDim, 0, own.size(kRowsDim)).copy_(own);
  shape.insert(shape.begin(), ranks.size());
  const at::Tensor all = at::empty(shape, own.options());
  ranks.all_gather(bytes_of(all), bytes_of(padded));
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    parts.push_back(by_channel(all[rank]).narrow(kRowsDim, 0, counts[static_cast<size_t>(rank)]));
  }
  return ops::cat_places(parts, kRowsDim);
}

/// Of the sum over the ranks of what each has of the whole the own rows.
at::Tensor scattered_over(const comm::Group& ranks, const std::vector<int64_t>& counts,
                          const at::Tensor& whole) {
  std::vector<int64_t> shape = by_place(whole).sizes().vec();
  shape[shape.size() - 3] = *std::ranges::max_element(counts);
  shape.insert(shape.begin(), ranks.size());
  const at::Tensor parts = at::zeros(shape, whole.options());  // by rank
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const int64_t rows = counts[static_cast<size_t>(rank)];
    by_channel(parts[rank])
        .narrow(kRowsDim, 0, rows)
        .copy_(whole.narrow(kRowsDim, first_of(counts, rank), rows));
  }
  const at::Tensor own = at::empty_like(parts);
  ranks.all_to_all(bytes_of(own), bytes_of(parts));
  return by_channel(own.sum(0)).narrow(kRowsDim, 0, counts[static_cast<size_t>(ranks.rank())]);
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
  return pieces.size() == 1 ? pieces[0] : ops::cat_places(pieces, kRowsDim);
}

/// Bytes that the stage takes at most, in so many bands, but for what backward keeps.
int64_t peak_of(const BandStage& stage, int64_t bands, bool on_host, bool with_gradients) {
  const int64_t units_a_band = ceil_div(stage.units, bands);
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

at::Tensor for_bands(const at::Tensor& x, const BandPlan& plan) {
  if (plan.ranks.size() == 1) {
    return x;
  }
  const int64_t units = units_of(plan.stages.front(), x.size(kRowsDim));
  const std::vector<int64_t> counts = rows_of_ranks(plan, units, x.size(kRowsDim) / units);
  return exchanged(
      plan, x, [](const at::Tensor& given) { return given.detach(); },
      [ranks = plan.ranks, counts](const at::Tensor& gradient) {
        const at::Tensor own = gradient.narrow(kRowsDim, first_of(counts, ranks.rank()),
                                               counts[static_cast<size_t>(ranks.rank())]);
        return gathered_over(ranks, counts, own) / static_cast<double>(ranks.size());
      });
}

Bands::Bands(const at::Tensor& x, const BandPlan& plan) : plan_(plan), device_(x.device()) {
  const int64_t rows = x.size(kRowsDim);
  units_ = units_of(plan_.stages[0], rows);
  KINORA_CHECK(units_ >= plan_.ranks.size(), kConfig, "[autoencoder] ", plan_.ranks.size(),
               " ranks cannot divide ", units_, " rows of latents. Hint: fewer ranks");
  borders_ = borders(units_);
  const int64_t unit = rows / units_;
  for (size_t i = 0; i + 1 < borders_.size(); ++i) {
    const int64_t begin = borders_[i] * unit;
    const int64_t length = borders_[i + 1] * unit - begin;
    add(length == rows ? x : x.narrow(kRowsDim, begin, length).clone());
  }
}

std::vector<int64_t> Bands::borders(int64_t units) const {
  const std::vector<int64_t> of_ranks = rows_of_ranks(plan_, units, 1);
  const int64_t first = first_of(of_ranks, plan_.ranks.rank());
  const int64_t own = of_ranks[static_cast<size_t>(plan_.ranks.rank())];
  const int64_t count = std::min(plan_.stages[stage_].bands, own);
  std::vector<int64_t> begins;
  for (int64_t i = 0; i <= count; ++i) {
    begins.push_back(first + own * i / count);
  }
  return begins;
}

Bands Bands::next_stage() && {
  ++stage_;
  KINORA_CHECK(stage_ < plan_.stages.size(), kInternal, "[bands] the plan has ",
               plan_.stages.size(), " stages");
  const int64_t rows_of_all = num_rows();
  const int64_t units = units_of(plan_.stages[stage_], rows_of_all);
  const std::vector<int64_t> cuts = borders(units);
  std::vector<int64_t> begins;
  for (const int64_t border : cuts) {
    begins.push_back(border * (rows_of_all / units));
  }
  units_ = units;
  borders_ = cuts;
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
  empty.units_ = units_;
  empty.borders_ = borders_;
  return empty;
}

void Bands::add(const at::Tensor& band) {
  const size_t i = bands_.size();
  const int64_t rows = band.size(kRowsDim);
  if (i == 0) {  // every unit has as many rows
    begins_.push_back(borders_[0] * rows / (borders_[1] - borders_[0]));
  }
  begins_.push_back(begins_.back() + rows);
  sizes_ = band.sizes().vec();
  bands_.push_back(plan_.on_host ? to_host(band) : band);
}

bool Bands::may_overwrite() const {
  return !at::GradMode::is_enabled() && !plan_.on_host &&
         std::all_of(bands_.begin(), bands_.end(), [](const at::Tensor& band) {
           return band.use_count() == 1 && band.storage().use_count() == 1;
         });
}

int64_t Bands::num_rows() const {
  return units_ * (begins_.back() - begins_.front()) / (borders_.back() - borders_.front());
}

at::Tensor Bands::over_ranks(const at::Tensor& sum) const {
  if (!is_divided()) {
    return sum;
  }
  const Exchange add = [ranks = plan_.ranks](const at::Tensor& own) {
    return sum_over(ranks, own);
  };
  return exchanged(plan_, sum, add, add);
}

void Bands::meet(std::array<int64_t, 2> halo) const {
  met_ = {};
  const comm::Group& ranks = plan_.ranks;
  if (ranks.size() == 1) {
    return;
  }
  const int64_t own = begins_.back() - begins_.front();
  // From whom rows come, around a ring whose ends do not meet, and which of the own ones go on.
  const auto passed = [&](int64_t count, int64_t first, int64_t from, int64_t to) {
    return exchanged(
        plan_, rows(first, first + count),
        [=](const at::Tensor& sent) { return passed_on(ranks, sent, from, to); },
        [=](const at::Tensor& gradient) { return passed_on(ranks, gradient, to, from); });
  };
  KINORA_CHECK(std::max(halo[0], halo[1]) <= own, kConfig, "[autoencoder] a rank has ", own,
               " rows of a layer, of which those next to it see ", std::max(halo[0], halo[1]),
               ". Hint: fewer ranks");
  const int64_t above = (ranks.rank() + ranks.size() - 1) % ranks.size();
  const int64_t below = (ranks.rank() + 1) % ranks.size();
  std::array<at::Tensor, 2> met;
  if (halo[0] > 0) {
    met[0] = passed(halo[0], begins_.back() - halo[0], above, below);
  }
  if (halo[1] > 0) {
    met[1] = passed(halo[1], begins_.front(), below, above);
  }
  met_ = {ranks.rank() > 0 ? met[0] : at::Tensor(),
          ranks.rank() + 1 < ranks.size() ? met[1] : at::Tensor()};
}

at::Tensor Bands::joined() const {
  const at::Tensor own = rows(begins_.front(), begins_.back());
  if (!is_divided()) {
    return own;
  }
  const std::vector<int64_t> counts = rows_of_ranks(plan_, units_, num_rows() / units_);
  return exchanged(
      plan_, own,
      [ranks = plan_.ranks, counts](const at::Tensor& x) {
        return gathered_over(ranks, counts, x);
      },
      [size = static_cast<double>(plan_.ranks.size()), begin = begins_.front(),
       count = own.size(kRowsDim)](const at::Tensor& gradient) {
        return gradient.narrow(kRowsDim, begin, count) * size;
      });
}

at::Tensor Bands::computed_from_whole(const WholeLayer& layer) const {
  const int64_t from = begins_.front();
  const int64_t to = begins_.back();
  if (!is_divided()) {  // rows far around the first band are all
    return computed(0, {0, num_rows()}, [=](const Rows& rows, const auto& /*also*/) {
      return layer(rows.x, from, to);
    });
  }
  const std::vector<int64_t> counts = rows_of_ranks(plan_, units_, num_rows() / units_);
  const at::Tensor whole = exchanged(
      plan_, rows(from, to),
      [ranks = plan_.ranks, counts](const at::Tensor& x) {
        return gathered_over(ranks, counts, x);
      },
      [ranks = plan_.ranks, counts](const at::Tensor& gradient) {
        return scattered_over(ranks, counts, gradient);
      });
  const auto body = [=](const std::vector<at::Tensor>& x) { return layer(x[0], from, to); };
  return plan_.recompute ? ops::recompute(body, {whole}) : body({whole});
}

int64_t Bands::group_elements(int64_t groups) const {
  int64_t elements = num_rows();
  for (size_t dim = 1; dim < sizes_.size(); ++dim) {
    elements *= dim == sizes_.size() - 2 ? 1 : sizes_[dim];
  }
  return elements / groups;
}

at::Tensor Bands::rows(int64_t from, int64_t to) const {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  const auto take = [&](const at::Tensor& part, int64_t part_begin) {
    if (part.defined() && part_begin < to && part_begin + part.size(kRowsDim) > from) {
      begin = parts.empty() ? part_begin : begin;
      parts.push_back(part);
    }
  };
  if (met_[0].defined()) {
    take(met_[0], begins_.front() - met_[0].size(kRowsDim));
  }
  for (size_t i = 0; i < size(); ++i) {
    take(bands_[i], begins_[i]);
  }
  take(met_[1], begins_.back());
  return gathered(parts, begin, from, to, device_);
}

at::Tensor Bands::computed(size_t i, std::array<int64_t, 2> halo, const Layer& layer,
                           const std::vector<at::Tensor>& also) const {
  if (i == 0 && halo[0] + halo[1] > 0) {
    meet(halo);
  }
  const int64_t from = std::max<int64_t>(0, begin(i) - halo[0]);
  const int64_t to = std::min(num_rows(), end(i) + halo[1]);
  size_t first = i;
  while (first > 0 && begin(first) > from) {
    --first;
  }
  size_t last = i;
  while (last + 1 < size() && end(last) < to) {
    ++last;
  }
  // What is kept for backward are the bands themselves, not copies of rows.
  std::vector<at::Tensor> inputs(bands_.begin() + static_cast<std::ptrdiff_t>(first),
                                 bands_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  int64_t start = begin(first);
  if (from < begins_.front()) {
    inputs.insert(inputs.begin(), met_[0]);
    start -= met_[0].size(kRowsDim);
  }
  if (to > begins_.back()) {
    inputs.push_back(met_[1]);
  }
  const size_t parts = inputs.size();
  inputs.insert(inputs.end(), also.begin(), also.end());
  const std::array<int64_t, 2> missing = {from - (begin(i) - halo[0]), end(i) + halo[1] - to};
  const auto body = [=, device = device_](const std::vector<at::Tensor>& values) {
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
  return over_own_rows(x, [layer](const at::Tensor& whole, int64_t from, int64_t to) {
    return layer(whole).narrow(kRowsDim, from, to - from);
  });
}

Bands over_own_rows(const Bands& x, const Bands::WholeLayer& layer) {
  const at::Tensor made = x.computed_from_whole(layer);
  Bands result = x.like();
  for (size_t i = 0; i < x.size(); ++i) {
    result.add(made.narrow(kRowsDim, x.begin(i) - x.begin(0), x.end(i) - x.begin(i)));
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
  return x.over_ranks(sums);
}

namespace {

/// What one of so many ranks has of it, at most. What computes all at once does so on each.
BandStage part_of(BandStage stage, int64_t ranks) {
  const int64_t units = ceil_div(stage.units, ranks);
  if (units == stage.units) {
    return stage;
  }
  for (BandNeed& need : stage.needs) {
    need.stored = need.stored / stage.units * units;
    if (need.rows >= stage.units) {
      const int64_t rows = need.rows / stage.units * units;
      need.kept = need.kept / need.rows * (rows + 2 * need.halo);  // with those of other ranks
      need.work = need.work / need.rows * rows;
      need.gathered_work = need.gathered_work / need.rows * rows;
      need.rows = rows;
    }
  }
  stage.units = units;
  return stage;
}

}  // namespace

bool fits_whole(const BandStage& stage, const BandLimits& limits) {
  return limits.bytes == 0 || peak_of(part_of(stage, limits.ranks.size()), 1, /*on_host=*/false,
                                      /*with_gradients=*/false) <= limits.bytes;
}

BandPlan plan_bands(const std::vector<BandStage>& whole, const BandLimits& limits,
                    bool with_gradients) {
  const int64_t budget = limits.bytes;
  std::vector<BandStage> stages;
  for (const BandStage& stage : whole) {
    stages.push_back(part_of(stage, limits.ranks.size()));
  }
  BandPlan plan;
  plan.ranks = limits.ranks;
  plan.stages.clear();
  int64_t kept = 0;
  for (const BandStage& stage : stages) {
    plan.stages.push_back({.bands = 1, .units = whole[plan.stages.size()].units});
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
    if (on_host && with_gradients && limits.ranks.size() > 1) {
      break;
    }
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
