#include "kinora/tokenizers/unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

// An unknown character is so much worse than the worst piece (kUnkPenalty of SentencePiece).
constexpr double kUnknownPenalty = 10;
constexpr uint32_t kUnreached = std::numeric_limits<uint32_t>::max();
constexpr int32_t kUnknownId = -1;

}  // namespace

Unigram::Unigram(const Vocabulary& vocabulary, const Rules& rules,
                 const std::vector<ScoredPiece>& pieces, std::string_view where)
    : rules_(rules), scores_(static_cast<size_t>(vocabulary.size())), vocabulary_(&vocabulary) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const ScoredPiece& piece : pieces) {
    KINORA_CHECK(piece.text.size() <= kMaxPieceBytes, kIo, where, ": a piece must have at most ",
                 kMaxPieceBytes, " bytes, got ", piece.text.size());
    trie_.add(piece.text, piece.id);
    scores_[static_cast<size_t>(piece.id)] = piece.score;
    lowest = std::min(lowest, piece.score);
  }
  unk_score_ = lowest - kUnknownPenalty;
  if (rules.single_precision) {
    unk_score_ = static_cast<float>(unk_score_);
  }
  if (rules.byte_fallback) {
    byte_ids_ = vocabulary.byte_ids();
  }
}

template <typename Sum>
void Unigram::fill(std::string_view text, Scratch& nodes) const {
  nodes.assign(text.size() + 1, {0, kUnknownId, kUnreached});
  for (size_t at = 0; at < text.size();) {
    const size_t size = code_point_at(text, at).size;
    const double so_far = nodes[at].score;
    const auto offer = [&](size_t end, int32_t id, double score) {
      Node& node = nodes[end];
      const Sum sum = static_cast<Sum>(score) + static_cast<Sum>(so_far);
      if (node.begin == kUnreached || sum > node.score) {
        node = {static_cast<double>(sum), id, static_cast<uint32_t>(at)};
      }
    };
    bool has_character = false;
    trie_.each_prefix(text.substr(at), [&](const ByteTrie::Match& match) {
      has_character = has_character || match.size == size;
      offer(at + match.size, static_cast<int32_t>(match.value),
            scores_[static_cast<size_t>(match.value)]);
    });
    if (!has_character) {
      offer(at + size, kUnknownId, unk_score_);
    }
    at += size;
  }
}

void Unigram::emit_unknown(std::string_view text, std::vector<int64_t>& ids) const {
  if (const int64_t id = vocabulary_->id_of(text); id >= 0) {
    ids.push_back(id);
    return;
  }
  const auto id_of_byte = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (!byte_ids_.empty() &&
      std::all_of(text.begin(), text.end(), [&](char byte) { return id_of_byte(byte) >= 0; })) {
    for (const char byte : text) {
      ids.push_back(id_of_byte(byte));
    }
    return;
  }
  KINORA_CHECK(rules_.unk >= 0, kConfig, "[tokenizer] the tokenizer has no token for ",
               quote(text.substr(0, code_point_at(text, 0).size)), ", and none for unknown text");
  ids.push_back(rules_.unk);
}

void Unigram::encode(std::string_view text, std::vector<int64_t>& ids, Scratch& scratch) const {
  if (rules_.single_precision) {
    fill<float>(text, scratch);
  } else {
    fill<double>(text, scratch);
  }
  // The path from its end on, turned into links from its start on: a node's `begin` becomes its
  // end.
  size_t end = text.size();
  uint32_t next = kUnreached;
  while (end > 0) {
    const size_t begin = scratch[end].begin;
    std::swap(scratch[end].begin, next);
    next = static_cast<uint32_t>(end);
    end = begin;
  }
  size_t unknown_begin = 0;
  bool is_unknown = false;
  size_t at = 0;
  while (at < text.size()) {
    const size_t node_end = next;
    const Node& node = scratch[node_end];
    // The token for unknown text may itself be a piece.
    const bool unknown = node.id == kUnknownId || node.id == rules_.unk;
    if (is_unknown && !unknown) {
      emit_unknown(text.substr(unknown_begin, at - unknown_begin), ids);
    }
    if (!unknown) {
      ids.push_back(node.id);
    } else if (!is_unknown) {
      unknown_begin = at;
    }
    is_unknown = unknown;
    at = node_end;
    next = node.begin;
  }
  if (is_unknown) {
    emit_unknown(text.substr(unknown_begin), ids);
  }
}

}  // namespace kinora::tokenizers
