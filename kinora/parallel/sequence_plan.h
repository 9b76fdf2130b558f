#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/comm/link_speed.h"
#include "kinora/nn/sequence.h"

/// Which way of sequence parallelism suits a model, a batch and the links between ranks.
namespace kinora::parallel {

/// sequence_usp.h, sequence_fastseq.h and sequence_dsp.h say what they are.
enum class SequenceScheme : uint8_t {
  kAuto,     ///< what plan_sequence() finds cheapest
  kDsp,      ///< changes the divided dim between space and time
  kUlysses,  ///< divides heads
  kFastSeq,  ///< gathers tokens, divides heads
  kUsp,      ///< divides heads inside, rings across
  kNdRing,   ///< keys and values go around rings inside and across
  kRing,     ///< keys and values go around one ring
};
inline constexpr size_t kNumSequenceSchemes = 7;

/// In the order of the enumerators.
inline constexpr std::array<std::string_view, kNumSequenceSchemes> kSequenceSchemeNames = {
    "auto", "dsp", "ulysses", "fastseq", "usp", "nd_ring", "ring"};

[[nodiscard]] constexpr std::string_view to_string(SequenceScheme scheme) {
  return kSequenceSchemeNames[static_cast<size_t>(scheme)];
}

/// What make_sequence() builds. The ranks of a sequence are all_to_all x ring_inside x ring_across;
/// schemes without rings have them all in all_to_all.
struct SequencePlan {
  SequenceScheme scheme = SequenceScheme::kUlysses;
  int64_t all_to_all = 1;
  int64_t ring_inside = 1;
  int64_t ring_across = 1;
  std::string reason = {};  ///< a line for the start of a run

  [[nodiscard]] int64_t ranks() const { return all_to_all * ring_inside * ring_across; }
  /// How many of the three have more than one rank: so many groups communicate.
  [[nodiscard]] int64_t num_levels() const {
    return (all_to_all > 1 ? 1 : 0) + (ring_inside > 1 ? 1 : 0) + (ring_across > 1 ? 1 : 0);
  }
};

/// What a plan depends on. A layer is what has one self-attention for each of `spans` and `windows`
/// more of them in windows of a clip: {kFrame, kTime} for a pair of blocks of a video model.
struct SequenceFacts {
  SequenceScheme scheme = SequenceScheme::kAuto;
  int64_t ranks = 1;
  int64_t ranks_inside = 1;  ///< so many neighbours share a host; divides ranks
  comm::Link inside = {};    ///< between them
  comm::Link across = {};    ///< between hosts, what each of their ranks gets of it
  int64_t tensor = 1;        ///< ranks that divide the linears (tensor.h), of each sequence's part
  bool has_updates = false;  ///< beside linears' weights (nn/weight_update.h)
  bool is_fp8 = false;       ///< linears compute in 8 bits
  int64_t heads = 1;         ///< of the model
  int64_t hidden = 1;
  int64_t batch = 1;  ///< clips that a sequence computes at once
  int64_t num_frames = 1;
  int64_t tokens_a_frame = 1;
  std::vector<nn::Span> spans = {};
  /// Of captions that have a stream of their own, nn::Sequence::stream_attention; 0: none have.
  int64_t text_tokens = 0;
  bool reads_padding = true;    ///< all text_tokens of each caption
  bool has_pictures = false;    ///< tokens of pictures of any size are among those of the image
  bool has_block_mask = false;  ///< not all tokens of the streams attend to all
  /// Attention is that of streams though there are no text_tokens: those of each frame.
  bool frames_are_streams = false;
  int64_t windows = 0;  ///< nn::Sequence::window_attention, which by any scheme divides heads
  int64_t element_bytes = 2;
  /// Of a rank's products, to see what they hide; infinite: nothing.
  double flops_per_s = std::numeric_limits<double>::infinity();
  /// Memory of a rank for what is on its way.
  double free_bytes = std::numeric_limits<double>::infinity();
};

/// Of a layer, on one rank.
struct SequenceCost {
  std::string refused;   ///< why it is not possible; the rest is 0 then
  double sent = 0.0;     ///< bytes, forward
  double seconds = 0.0;  ///< of forward and backward that computation does not hide
  double held = 0.0;     ///< bytes that travel or are set aside for it, at most
};

/// Sent bytes are those of the algorithms: with m bytes of activations a rank and P ranks an
/// all-to-all of m sends m (P - 1) / P, a ring m (P - 1). See docs of the schemes; dsp also pays
/// for frames that are computed more than once where B T does not divide.
[[nodiscard]] SequenceCost cost_of(const SequencePlan& plan, const SequenceFacts& facts);

/// The cheapest possible plan, of facts.scheme if that is not kAuto. kConfig, with the reasons, if
/// none is possible.
[[nodiscard]] SequencePlan plan_sequence(const SequenceFacts& facts);

}  // namespace kinora::parallel
