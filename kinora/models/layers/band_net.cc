#include "kinora/models/layers/band_net.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/models/layers/band_layers.h"
#include "kinora/ops/channel_norm.h"
#include "kinora/ops/edges.h"

namespace kinora::models {

namespace {

constexpr int64_t kPieceDim = 2;    // of frames
constexpr int64_t kRowsOfClip = 3;  // the dim
constexpr int64_t kMostFrames = 8;  // of a window

}  // namespace

ClipSize clip_size(const at::Tensor& x) {
  return {.batch = x.size(0),
          .channels = x.size(1),
          .frames = x.size(2),
          .rows = x.size(3),
          .columns = x.size(4),
          .element_bytes = static_cast<int64_t>(x.element_size()),
          .one_pass_norms = ops::norms_in_one_pass(x)};
}

std::optional<ClipWindow> BandLayer::stream(ClipWindow /*x*/, ClipStream& /*stream*/) const {
  KINORA_UNREACHABLE("[band_net] a layer was asked to stream that does not");
}

at::Tensor BandNet::forward(const at::Tensor& x, const nn::BandLimits& limits) const {
  const NetPlan plan = net_plan(clip_size(x), limits, at::GradMode::is_enabled());
  const size_t before = plan.streamed.empty() ? layers_.size() : plan.streamed[0].first;
  at::Tensor y = x;
  {
    nn::Bands bands(nn::for_bands(x, plan.bands), plan.bands);
    for (size_t i = 0; i < before; ++i) {
      bands = layers_[i]->forward(std::move(bands));
    }
    y = bands.joined();
  }
  for (const StreamedPart& part : plan.streamed) {
    y = streamed(y, part);
  }
  return tapped(y);
}

at::Tensor BandNet::streamed(const at::Tensor& x, const StreamedPart& part) const {
  const int64_t rows = x.size(kRowsOfClip);
  const int64_t around = rows_around(part);
  const ClipSize size = size_behind(clip_size(x), part.first, part.last);
  const at::Tensor made =
      at::empty({size.batch, size.channels, size.frames, size.rows, size.columns},
                x.options().memory_format(at::MemoryFormat::ChannelsLast3d));
  ClipStream stream(rows);
  do {
    for (int64_t band = 0; band < part.bands; ++band) {
      const int64_t begin = rows * band / part.bands;
      const int64_t end = rows * (band + 1) / part.bands;
      stream.begin_band(begin, end);
      const int64_t from = std::max<int64_t>(0, begin - around);
      const int64_t to = std::min(rows, end + around);
      int64_t frame = 0;  // of the result
      for (const at::Tensor& piece :
           x.narrow(kRowsOfClip, from, to - from).split(part.frames, kPieceDim)) {
        const std::optional<ClipWindow> window = through(
            part, {.x = ops::packed_places(piece), .from = from, .to = to, .rows = rows}, stream);
        if (window) {
          const auto [first, last] = stream.own_rows(window->rows);
          const int64_t frames = window->x.size(kPieceDim);
          made.narrow(kPieceDim, frame, frames)
              .narrow(kRowsOfClip, first, last - first)
              .copy_(window->part(first, last));
          frame += frames;
        }
        stream.next_piece();
      }
    }
  } while (stream.end_pass());
  return made;
}

std::optional<ClipWindow> BandNet::through(const StreamedPart& part, ClipWindow window,
                                           ClipStream& stream) const {
  std::optional<ClipWindow> result = std::move(window);
  for (size_t i = part.first; i < part.last && result; ++i) {
    result = layers_[i]->stream(std::move(*result), stream);
  }
  return result;
}

ClipSize BandNet::size_behind(ClipSize size, size_t first, size_t last) const {
  std::vector<nn::BandNeed> ignored;
  for (size_t i = first; i < last; ++i) {
    size = layers_[i]->plan(size, &ignored);
  }
  return size;
}

int64_t BandNet::rows_around(const StreamedPart& part) const {
  int64_t rows = 0;
  for (size_t i = part.last; i-- > part.first;) {
    rows = layers_[i]->rows_around(rows);
  }
  return rows;
}

bool BandNet::fits(const ClipSize& in, const StreamedPart& part, int64_t bytes) const {
  ClipSize window = in;
  window.rows = std::min(in.rows, ceil_div(in.rows, part.bands) + 2 * rows_around(part));
  window.frames = std::min(in.frames, part.frames);
  int64_t remembered = 0;
  int64_t most = 0;
  for (size_t i = part.first; i < part.last; ++i) {
    std::vector<nn::BandNeed> needs;
    remembered += layers_[i]->remembered_bytes(window);
    const int64_t given = window.bytes();
    window = layers_[i]->plan(window, &needs);
    for (const nn::BandNeed& need : needs) {  // and once more behind what is remembered
      most = std::max(most, need.stored + need.work + std::max(given, window.bytes()));
    }
  }
  const int64_t made = size_behind(in, part.first, part.last).bytes();
  return in.bytes() + made + remembered + most <= bytes;
}

std::vector<BandNet::StreamedPart> BandNet::streamed_parts(const ClipSize& in, size_t first,
                                                           const nn::BandLimits& limits) const {
  std::vector<StreamedPart> parts;
  ClipSize size = in;
  std::vector<nn::BandNeed> ignored;
  for (size_t begin = first; begin < layers_.size();) {
    StreamedPart part{.first = begin, .last = begin};
    ClipSize out = size;
    do {
      out = layers_[part.last++]->plan(out, &ignored);
    } while (part.last < layers_.size() &&
             layers_[part.last]->plan(out, &ignored).rows == out.rows);
    const auto fits_with = [&](int64_t bands) {
      part.bands = bands;
      for (part.frames = kMostFrames; part.frames > 0; part.frames /= 2) {
        if (fits(size, part, limits.bytes)) {
          return true;
        }
      }
      return false;
    };
    int64_t bands = 1;
    while (bands <= size.rows && !fits_with(bands)) {
      ++bands;
    }
    if (bands > size.rows) {
      return {};
    }
    parts.push_back(part);
    size = out;
    begin = part.last;
  }
  return parts;
}

BandNet::NetPlan BandNet::net_plan(const ClipSize& in, const nn::BandLimits& limits,
                                   bool with_gradients) const {
  const NetPlan plan{.bands = nn::plan_bands({stage(in, layers_.size())}, limits, with_gradients),
                     .streamed = {}};
  if (!plan.bands.on_host || with_gradients || limits.ranks.size() > 1) {
    return plan;
  }
  // The fewest layers, which are the last ones.
  std::vector<ClipSize> sizes = {in};
  std::vector<nn::BandNeed> ignored;
  for (const auto& layer : layers_) {
    sizes.push_back(layer->plan(sizes.back(), &ignored));
  }
  for (size_t first = layers_.size(); first-- > 0 && layers_[first]->streams();) {
    if (sizes[first + 1].rows == sizes[first].rows) {
      continue;
    }
    NetPlan shorter{.bands = nn::plan_bands({stage(in, first)}, limits, false),
                    .streamed = streamed_parts(sizes[first], first, limits)};
    if (!shorter.bands.on_host && !shorter.streamed.empty()) {
      return shorter;
    }
  }
  return plan;
}

nn::BandStage BandNet::stage(const ClipSize& in, size_t count) const {
  nn::BandStage stage{.needs = {}, .units = in.rows / unit_};
  ClipSize size = in;
  for (size_t i = 0; i < count; ++i) {
    size = layers_[i]->plan(size, &stage.needs);
  }
  // What comes and goes is not in pieces.
  stage.needs.push_back(whole_need({.rows = 1, .row_bytes = in.bytes() + size.bytes()}, 1));
  return stage;
}

nn::BandPlan BandNet::plan(const ClipSize& in, const nn::BandLimits& limits,
                           bool with_gradients) const {
  return net_plan(in, limits, with_gradients).bands;
}

at::Tensor BandNet::forward_pieces(const at::Tensor& x, const std::vector<int64_t>& pieces,
                                   const nn::BandLimits& limits) const {
  const nn::BandPlan plan =
      piece_plan(clip_size(x), *std::max_element(pieces.begin(), pieces.end()), limits,
                 at::GradMode::is_enabled());
  ClipMemory memory;
  std::vector<at::Tensor> made;
  for (const at::Tensor& piece : x.split_with_sizes(pieces, kPieceDim)) {
    memory.piece = nn::for_bands(piece, plan);
    nn::Bands bands(memory.piece, plan);
    for (const auto& layer : layers_) {
      bands = layer->forward_next(std::move(bands), memory);
    }
    made.push_back(bands.joined());
    memory.begins = false;
  }
  return tapped(at::cat(made, kPieceDim));
}

nn::BandStage BandNet::piece_stage(const ClipSize& in, int64_t frames) const {
  ClipSize piece = in;
  piece.frames = frames;
  nn::BandStage needs = stage(piece, layers_.size());
  // Beside a piece lie the whole that comes, all that was made, and what layers remember.
  int64_t beside = in.bytes();
  ClipSize whole = in;
  std::vector<nn::BandNeed> ignored;
  for (const auto& layer : layers_) {
    beside += layer->remembered_bytes(piece);
    whole = layer->plan(whole, &ignored);
    piece = layer->plan(piece, &ignored);
  }
  for (nn::BandNeed& need : needs.needs) {
    need.stored += beside + whole.bytes();
  }
  return needs;
}

nn::BandPlan BandNet::piece_plan(const ClipSize& in, int64_t frames, const nn::BandLimits& limits,
                                 bool with_gradients) const {
  nn::BandStage stage = piece_stage(in, frames);
  for (nn::BandNeed& need : stage.needs) {
    need.kept *= ceil_div(in.frames, frames);
  }
  return nn::plan_bands({std::move(stage)}, limits, with_gradients);
}

bool BandNet::piece_fits(const ClipSize& in, int64_t frames, const nn::BandLimits& limits) const {
  return nn::fits_whole(piece_stage(in, frames), limits);
}

}  // namespace kinora::models
