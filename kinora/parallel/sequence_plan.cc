#include "kinora/parallel/sequence_plan.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::parallel {
namespace {

constexpr std::array<SequenceScheme, kNumSequenceSchemes - 1> kSchemes = {
    SequenceScheme::kDsp, SequenceScheme::kUlysses, SequenceScheme::kFastSeq,
    SequenceScheme::kUsp, SequenceScheme::kNdRing,  SequenceScheme::kRing};

double real(int64_t value) {
  return static_cast<double>(value);
}

/// Adds up what a layer costs. m: bytes of a rank's part of activations [B, T, S, C].
class Costs {
 public:
  Costs(const SequencePlan& plan, const SequenceFacts& facts) : plan_(plan), facts_(facts) {
    const auto part_of = [&](int64_t tokens) { return ceil_div(tokens, facts.ranks); };
    tokens_ = real(facts.batch *
                   (facts.num_frames * part_of(facts.tokens_a_frame) + part_of(facts.text_tokens)));
    part_ = tokens_ * real(facts.hidden * facts.element_bytes);
  }

  SequenceCost total() {
    cost_.refused = refusal();
    if (!cost_.refused.empty()) {
      return cost_;
    }
    for (const nn::Span span : facts_.spans) {
      if (span != nn::Span::kTime) {
        add_attention(span);
      }
    }
    for (int64_t window = 0; window < facts_.windows; ++window) {
      divide_heads(facts_.ranks);
    }
    if (cost_.held > facts_.free_bytes) {
      cost_.refused = "not enough memory for what travels";
    }
    return cost_;
  }

 private:
  [[nodiscard]] bool mixes_frames() const {
    return facts_.num_frames > 1 &&
           std::count(facts_.spans.begin(), facts_.spans.end(), nn::Span::kClip) > 0;
  }

  [[nodiscard]] std::string refusal() const {
    const int64_t heads = facts_.heads / facts_.tensor;
    if (facts_.windows > 0 && heads % facts_.ranks != 0) {
      return std::to_string(heads) + " heads do not divide, as attention in windows needs";
    }
    const bool divides_linears = plan_.scheme == SequenceScheme::kFastSeq;
    if (divides_linears && facts_.tensor > 1) {
      return "not where ranks divide the linears, too";
    }
    if (divides_linears && facts_.has_updates) {
      return "not for linears with low-rank updates, which it divides";
    }
    const bool has_rings = plan_.ring_inside * plan_.ring_across > 1;
    if (has_rings && facts_.has_block_mask) {
      return "in rings all tokens attend to all, and windows leave some out";
    }
    if (facts_.frames_are_streams) {
      if (divides_linears || plan_.scheme == SequenceScheme::kDsp) {
        return "not for norms over all heads";
      }
      if (has_rings && facts_.tokens_a_frame % facts_.ranks != 0) {
        return "the tokens do not divide, as rings need";
      }
    }
    if (facts_.text_tokens > 0) {
      if (plan_.scheme == SequenceScheme::kDsp) {
        return "not for text and image together";
      }
      if (divides_linears && facts_.is_fp8) {
        return "not for text and image together in fp8: it makes queries in 16 bits";
      }
      if (divides_linears && facts_.scheme == SequenceScheme::kAuto) {
        return "for text and image together not timed on GPUs: taken where it is asked for";
      }
      if (has_rings && !facts_.reads_padding) {
        return "rings read all tokens of all captions";
      }
      if (has_rings && facts_.has_pictures) {
        return "rings need tokens that divide, and pictures of any size are among them";
      }
      if (has_rings && (facts_.num_frames * facts_.tokens_a_frame % facts_.ranks != 0 ||
                        facts_.text_tokens % facts_.ranks != 0)) {
        return "the tokens do not divide, as rings of text and image need";
      }
    }
    if (plan_.scheme == SequenceScheme::kDsp) {
      return mixes_frames() ? "attention over whole clips" : "";
    }
    if (heads % plan_.all_to_all != 0) {
      return std::to_string(heads) + " heads do not divide";
    }
    return "";
  }

  void add_attention(nn::Span span) {
    switch (plan_.scheme) {
      case SequenceScheme::kDsp: {
        add_all_to_all(part_, plan_.all_to_all);
        add_all_to_all(part_, plan_.all_to_all);
        hold(2 * part_);
        // The most that a rank computes over its fair share.
        const int64_t frames = facts_.batch * facts_.num_frames;
        const int64_t most = ceil_div(frames, facts_.ranks);
        cost_.seconds += (real(most * facts_.ranks) / real(frames) - 1.0) * 3.0 *
                         (products(4) + attention(span));
        break;
      }
      case SequenceScheme::kFastSeq:
        add_ring(products(3));
        add_all_to_all(part_, plan_.all_to_all);
        hold(4 * part_);
        break;
      default:
        add_usp(span);
    }
  }

  void add_usp(nn::Span span) {
    if (plan_.all_to_all > 1) {
      divide_heads(plan_.all_to_all);
    }
    const int64_t rings = plan_.ring_inside * plan_.ring_across;
    if (rings == 1) {
      return;
    }
    // Forward passes keys and values around, backward their gradients too.
    for (const double travelling : {2 * part_, 4 * part_}) {
      const double inside = real(plan_.ring_across * (plan_.ring_inside - 1)) *
                            hop(plan_.all_to_all * plan_.ring_inside).seconds(travelling);
      const double across = real(plan_.ring_across - 1) * hop(facts_.ranks).seconds(travelling);
      const double computed = travelling > 2 * part_ ? 2.5 * attention(span) : attention(span);
      cost_.seconds += std::max(0.0, std::max(inside, across) - computed);
    }
    cost_.sent += real(rings - 1) * 2 * part_;
    hold((plan_.ring_inside > 1 && plan_.ring_across > 1 ? 16 : 10) * part_);
  }

  /// Queries, keys and values to who has the heads, among so many ranks, and the result back.
  void divide_heads(int64_t ranks) {
    add_all_to_all(3 * part_, ranks);
    add_all_to_all(part_, ranks);
    hold(6 * part_);
  }

  void add_all_to_all(double bytes, int64_t ranks) {
    const int64_t inside = std::min(ranks, facts_.ranks_inside);
    const double each = bytes / real(ranks);
    const double to_others = real(ranks - inside) * each;
    double seconds = facts_.inside.seconds(real(inside - 1) * each);
    if (ranks > inside) {
      seconds = std::max(seconds, facts_.across.seconds(to_others));
    }
    cost_.sent += real(ranks - 1) * each;
    cost_.seconds += 2 * seconds;  // backward goes back
  }

  /// A ring of all ranks behind products: a part travels at each step, backward its gradients, too.
  void add_ring(double computed) {
    const comm::Link& link = hop(facts_.ranks);
    const double steps = real(facts_.ranks - 1);
    cost_.sent += steps * part_;
    cost_.seconds += std::max(0.0, steps * link.seconds(part_) - computed);
    cost_.seconds += std::max(0.0, steps * link.seconds(2 * part_) - 2 * computed);
  }

  /// The slowest hop in a ring of so many neighbours.
  [[nodiscard]] const comm::Link& hop(int64_t neighbours) const {
    return neighbours <= facts_.ranks_inside ? facts_.inside : facts_.across;
  }

  void hold(double bytes) { cost_.held = std::max(cost_.held, bytes); }

  /// Seconds of a rank's share of a product [N, C] x [C, columns C].
  [[nodiscard]] double products(double columns) const {
    return 2.0 * tokens_ * columns * real(facts_.hidden) * real(facts_.hidden) / facts_.flops_per_s;
  }

  /// Seconds of a rank's share of softmax(Q K^T) V.
  [[nodiscard]] double attention(nn::Span span) const {
    const int64_t keys = facts_.tokens_a_frame * (span == nn::Span::kClip ? facts_.num_frames : 1);
    return 4.0 * tokens_ * real(keys) * real(facts_.hidden) / facts_.flops_per_s;
  }

  const SequencePlan& plan_;
  const SequenceFacts& facts_;
  double tokens_;
  double part_;
  SequenceCost cost_;
};

/// The shapes that a scheme can have for so many ranks.
std::vector<SequencePlan> shapes_of(SequenceScheme scheme, const SequenceFacts& facts) {
  const int64_t ranks = facts.ranks;
  const int64_t inside = facts.ranks_inside;
  std::vector<SequencePlan> shapes;
  switch (scheme) {
    case SequenceScheme::kRing:
      shapes.push_back({scheme, 1, ranks, 1, ""});
      break;
    case SequenceScheme::kNdRing:
      if (inside > 1 && inside < ranks) {
        shapes.push_back({scheme, 1, inside, ranks / inside, ""});
      }
      break;
    case SequenceScheme::kUsp:
      for (int64_t heads = 2; heads < ranks; ++heads) {
        if (inside % heads == 0 && ranks % heads == 0) {
          shapes.push_back({scheme, heads, inside / heads, ranks / inside, ""});
        }
      }
      break;
    default:
      shapes.push_back({scheme, ranks, 1, 1, ""});
  }
  return shapes;
}

std::string shape_text(const SequencePlan& plan) {
  std::ostringstream text;
  text << to_string(plan.scheme);
  if (plan.scheme == SequenceScheme::kUsp || plan.scheme == SequenceScheme::kNdRing) {
    text << " (all-to-all " << plan.all_to_all << " x ring " << plan.ring_inside << " inside x "
         << plan.ring_across << " across)";
  }
  return text.str();
}

}  // namespace

SequenceCost cost_of(const SequencePlan& plan, const SequenceFacts& facts) {
  return Costs(plan, facts).total();
}

SequencePlan plan_sequence(const SequenceFacts& facts) {
  KINORA_CHECK(facts.ranks >= 1 && facts.ranks_inside >= 1 && facts.ranks % facts.ranks_inside == 0,
               kConfig, "[sequence] the ", facts.ranks_inside, " ranks of a host must divide the ",
               facts.ranks, " of a sequence.");
  SequencePlan best;
  double least = std::numeric_limits<double>::infinity();
  std::ostringstream text;
  text.precision(3);
  for (const SequenceScheme scheme : kSchemes) {
    if (facts.scheme != SequenceScheme::kAuto && facts.scheme != scheme) {
      continue;
    }
    const std::vector<SequencePlan> shapes = shapes_of(scheme, facts);
    if (shapes.empty()) {
      text << "; " << to_string(scheme) << ": needs several ranks of each of several hosts";
    }
    for (const SequencePlan& shape : shapes) {
      const SequenceCost cost = cost_of(shape, facts);
      text << "; " << shape_text(shape) << ": ";
      if (!cost.refused.empty()) {
        text << cost.refused;
        continue;
      }
      text << cost.seconds * 1e3 << " ms";
      if (cost.seconds < least) {
        least = cost.seconds;
        best = shape;
      }
    }
  }
  const std::string considered = text.str().substr(2);
  KINORA_CHECK(least < std::numeric_limits<double>::infinity(), kConfig,
               "[sequence] no scheme is possible for ", facts.ranks, " ranks: ", considered,
               ". Hint: parallel.sequence_scheme auto or another parallel.sequence");
  best.reason = "sequence parallelism of " + std::to_string(facts.ranks) + " ranks by " +
                shape_text(best) + "; exposed communication a layer: " + considered;
  return best;
}

}  // namespace kinora::parallel
