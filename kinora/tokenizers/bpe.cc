#include "kinora/tokenizers/bpe.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kinora/tokenizers/utf8.h"

namespace kinora::tokenizers {
namespace {

constexpr uint64_t kNoMerge = ~uint64_t{0};
// Up to so many symbols looking at all of them is faster than a heap.
constexpr size_t kFewSymbols = 48;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t character_key(char32_t code_point, bool is_first, bool is_last) {
  return uint64_t{code_point} | (is_first ? 1ULL << 32 : 0) | (is_last ? 1ULL << 33 : 0);
}

uint64_t merge_value(int64_t rank, int64_t id) {
  return static_cast<uint64_t>(rank) << 32 | static_cast<uint64_t>(id);
}

int32_t id_of_merge(uint64_t merge) {
  return static_cast<int32_t>(merge & 0xFFFFFFFF);
}

bool is_one_character(std::string_view text) {
  return !text.empty() && code_point_at(text, 0).size == text.size();
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, Rules rules, const std::vector<Merge>& merges)
    : rules_(std::move(rules)),
      num_tokens_(vocabulary.size()),
      merges_(merges.size()),
      vocabulary_(&vocabulary) {
  for (const Merge& merge : merges) {
    merges_.set(pair_key(static_cast<int32_t>(merge.left), static_cast<int32_t>(merge.right)),
                merge_value(merge.rank, merge.result));
  }
  if (rules_.byte_fallback) {
    byte_ids_ = vocabulary.byte_ids();
  }
  vocabulary.each([this](std::string_view token, int64_t id) {
    for (const bool is_first : {false, true}) {
      for (const bool is_last : {false, true}) {
        std::string_view prefix;
        std::string_view suffix;
        if (!is_first) {
          prefix = rules_.continuing_subword_prefix;
        }
        if (is_last) {
          suffix = rules_.end_of_word_suffix;
        }
        if (token.size() > prefix.size() + suffix.size() && token.starts_with(prefix) &&
            token.ends_with(suffix)) {
          const std::string_view rest =
              token.substr(prefix.size(), token.size() - prefix.size() - suffix.size());
          if (is_one_character(rest)) {
            characters_.set(character_key(code_point_at(rest, 0).value, is_first, is_last),
                            static_cast<uint64_t>(id));
          }
        }
      }
    }
  });
}

Bpe Bpe::of_sentence_piece(const Vocabulary& vocabulary, Rules rules,
                           const std::vector<ScoredPiece>& pieces) {
  Bpe bpe;
  bpe.rules_ = std::move(rules);
  bpe.is_sentence_piece_ = true;
  bpe.num_tokens_ = vocabulary.size();
  bpe.vocabulary_ = &vocabulary;
  if (bpe.rules_.byte_fallback) {
    bpe.byte_ids_ = vocabulary.byte_ids();
  }
  std::map<std::string_view, int32_t> symbols;  // by text: ids, or numbers of lone characters
  for (const ScoredPiece& piece : pieces) {
    symbols.insert_or_assign(piece.text, static_cast<int32_t>(piece.id));
  }
  int32_t next = static_cast<int32_t>(vocabulary.size());
  for (const ScoredPiece& piece : pieces) {
    const std::string_view text = piece.text;
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = code_point_at(text, at);
      const auto [found, is_new] = symbols.try_emplace(text.substr(at, point.size), next);
      next += is_new ? 1 : 0;
      bpe.characters_.set(character_key(point.value, false, false),
                          static_cast<uint64_t>(found->second));
      at += point.size;
    }
  }
  // Equal scores have equal ranks, so that the leftmost of them comes first.
  std::vector<float> scores;
  for (const ScoredPiece& piece : pieces) {
    scores.push_back(piece.score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (const ScoredPiece& piece : pieces) {
    const std::string_view text = piece.text;
    const auto rank =
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>()) -
        scores.begin();
    for (size_t at = code_point_at(text, 0).size; at < text.size();
         at += code_point_at(text, at).size) {
      const auto left = symbols.find(text.substr(0, at));
      const auto right = symbols.find(text.substr(at));
      if (left != symbols.end() && right != symbols.end()) {
        bpe.merges_.set(pair_key(left->second, right->second), merge_value(rank, piece.id));
      }
    }
  }
  return bpe;
}

uint64_t Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t* found = left < 0 || right < 0 ? nullptr : merges_.find(pair_key(left, right));
  return found == nullptr ? kNoMerge : *found;
}

void Bpe::add_symbols(std::string_view word, Scratch& scratch) const {
  bool unk_waits = false;
  const auto add = [&](int64_t id) { scratch.ids.push_back(static_cast<int32_t>(id)); };
  for (size_t at = 0; at < word.size();) {
    const CodePoint point = code_point_at(word, at);
    const bool is_first = at == 0;
    const bool is_last = at + point.size == word.size();
    const std::string_view character = word.substr(at, point.size);
    at += point.size;
    if (const uint64_t* id = characters_.find(character_key(point.value, is_first, is_last))) {
      if (std::exchange(unk_waits, false)) {
        add(rules_.unk);
      }
      add(static_cast<int64_t>(*id));
      continue;
    }
    if (!byte_ids_.empty()) {
      std::string& text = scratch.text;
      text.assign(character);
      if (!is_first) {
        text.insert(0, rules_.continuing_subword_prefix);
      }
      if (is_last) {
        text += rules_.end_of_word_suffix;
      }
      const auto id_of_byte = [&](char byte) {
        return byte_ids_[static_cast<unsigned char>(byte)];
      };
      if (std::all_of(text.begin(), text.end(), [&](char byte) { return id_of_byte(byte) >= 0; })) {
        // As in tokenizers, an unknown character before these bytes comes behind them.
        for (const char byte : text) {
          add(id_of_byte(byte));
        }
        continue;
      }
    }
    if (rules_.unk >= 0) {
      if (unk_waits && !rules_.fuse_unk) {
        add(rules_.unk);
      }
      unk_waits = true;
    }
  }
  if (unk_waits) {
    add(rules_.unk);
  }
}

void Bpe::add_sentence_piece_symbols(std::string_view word, Scratch& scratch) const {
  for (size_t at = 0; at < word.size();) {
    const CodePoint point = code_point_at(word, at);
    const uint64_t* id = characters_.find(character_key(point.value, false, false));
    scratch.ids.push_back(id == nullptr ? -1 : static_cast<int32_t>(*id));
    scratch.begins.push_back(static_cast<uint32_t>(at));
    at += point.size;
  }
}

void Bpe::merge_few(Scratch& scratch) const {
  auto& ids = scratch.ids;
  auto& merges = scratch.merges;
  merges.resize(ids.size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    merges[i] = merge_of(ids[i], ids[i + 1]);
  }
  while (ids.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < ids.size(); ++i) {
      // By rank alone, so that the leftmost of equal ones stays.
      best = merges[i] >> 32 < merges[best] >> 32 ? i : best;
    }
    if (merges[best] == kNoMerge) {
      return;
    }
    const auto next = static_cast<std::ptrdiff_t>(best) + 1;
    ids[best] = id_of_merge(merges[best]);
    ids.erase(ids.begin() + next);
    merges.erase(merges.begin() + next);
    if (!scratch.begins.empty()) {
      scratch.begins.erase(scratch.begins.begin() + next);
    }
    if (best > 0) {
      merges[best - 1] = merge_of(ids[best - 1], ids[best]);
    }
    if (best + 1 < ids.size()) {
      merges[best] = merge_of(ids[best], ids[best + 1]);
    }
  }
}

void Bpe::merge_many(Scratch& scratch) const {
  auto& ids = scratch.ids;
  const size_t size = ids.size();
  // neighbours: of symbol i the one before at 2 i and the one after at 2 i + 1; -1 at the ends.
  auto& neighbours = scratch.neighbours;
  auto& merges = scratch.merges;
  auto& heap = scratch.heap;
  neighbours.resize(2 * size);
  merges.assign(size, kNoMerge);
  heap.clear();
  // On the heap: rank << 32 | place. An entry counts only while merges[place] has this rank.
  const auto push = [&](size_t at) {
    if (merges[at] != kNoMerge) {
      heap.push_back((merges[at] >> 32 << 32) | at);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  for (size_t i = 0; i < size; ++i) {
    neighbours[2 * i] = static_cast<int32_t>(i) - 1;
    neighbours[2 * i + 1] = i + 1 < size ? static_cast<int32_t>(i) + 1 : -1;
    merges[i] = i + 1 < size ? merge_of(ids[i], ids[i + 1]) : kNoMerge;
    if (merges[i] != kNoMerge) {
      heap.push_back((merges[i] >> 32 << 32) | i);
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  std::vector<bool> is_gone(size);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const size_t at = entry & 0xFFFFFFFF;
    if (is_gone[at] || merges[at] >> 32 != entry >> 32 || merges[at] == kNoMerge) {
      continue;
    }
    const auto right = static_cast<size_t>(neighbours[2 * at + 1]);
    ids[at] = id_of_merge(merges[at]);
    is_gone[right] = true;
    const int32_t after = neighbours[2 * right + 1];
    neighbours[2 * at + 1] = after;
    merges[at] = kNoMerge;
    if (after >= 0) {
      neighbours[2 * static_cast<size_t>(after)] = static_cast<int32_t>(at);
      merges[at] = merge_of(ids[at], ids[static_cast<size_t>(after)]);
      push(at);
    }
    if (const int32_t before = neighbours[2 * at]; before >= 0) {
      const auto place = static_cast<size_t>(before);
      merges[place] = merge_of(ids[place], ids[at]);
      push(place);
    }
  }
  size_t count = 0;
  for (size_t i = 0; i < size; ++i) {
    if (!is_gone[i]) {
      ids[count] = ids[i];
      if (!scratch.begins.empty()) {
        scratch.begins[count] = scratch.begins[i];
      }
      ++count;
    }
  }
  ids.resize(count);
  scratch.begins.resize(scratch.begins.empty() ? 0 : count);
}

void Bpe::emit_sentence_piece(std::string_view word, std::vector<int64_t>& ids,
                              const Scratch& scratch) const {
  bool after_unk = false;
  for (size_t i = 0; i < scratch.ids.size(); ++i) {
    if (scratch.ids[i] >= 0 && scratch.ids[i] < num_tokens_) {
      ids.push_back(scratch.ids[i]);
      after_unk = false;
    } else if (byte_ids_.empty()) {
      if (!std::exchange(after_unk, true)) {
        ids.push_back(rules_.unk);
      }
    } else {
      const size_t end = i + 1 < scratch.ids.size() ? scratch.begins[i + 1] : word.size();
      for (size_t at = scratch.begins[i]; at < end; ++at) {
        ids.push_back(byte_ids_[static_cast<unsigned char>(word[at])]);
      }
    }
  }
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& ids, Scratch& scratch) const {
  if (rules_.ignore_merges) {
    if (const int64_t id = vocabulary_->id_of(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  scratch.ids.clear();
  scratch.begins.clear();
  if (is_sentence_piece_) {
    add_sentence_piece_symbols(word, scratch);
  } else {
    add_symbols(word, scratch);
  }
  if (scratch.ids.size() <= kFewSymbols) {
    merge_few(scratch);
  } else {
    merge_many(scratch);
  }
  if (is_sentence_piece_) {
    emit_sentence_piece(word, ids, scratch);
  } else {
    ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
  }
}

}  // namespace kinora::tokenizers
