// The model of a tokenizer.json, and lists of merges.

#include <utility>

#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"

namespace kinora::tokenizers {
namespace {

void read_bpe(const JsonValue& value, Pipeline& pipeline) {
  if (const auto dropout = value.find("dropout"); dropout && dropout->number() != 0) {
    dropout->refuse("must be 0 or null, since random merges are for training, got ",
                    dropout->number());
  }
  const JsonValue vocab = value.at("vocab");
  const std::string where = vocab.where();
  vocab.each_member([&](std::string_view token, const JsonValue& id) {
    pipeline.vocabulary->add(token, id.integer(), where);
  });
  Bpe::Rules rules;
  rules.continuing_subword_prefix = value.text_or("continuing_subword_prefix", "");
  rules.end_of_word_suffix = value.text_or("end_of_word_suffix", "");
  rules.fuse_unk = value.flag_or("fuse_unk", false);
  rules.byte_fallback = value.flag_or("byte_fallback", false);
  rules.ignore_merges = value.flag_or("ignore_merges", false);
  if (const auto unk = value.find("unk_token")) {
    rules.unk = pipeline.vocabulary->id_of(unk->text());
    if (rules.unk < 0) {
      unk->refuse("must be in the vocabulary, got ", quote(unk->text()));
    }
    pipeline.special.unk = rules.unk;
  }
  MergeList merges(*pipeline.vocabulary, rules.continuing_subword_prefix.size());
  const JsonValue list = value.at("merges");
  const std::string list_where = list.where();
  list.each([&](const JsonValue& merge) {
    if (merge.is_text()) {
      merges.add(merge.text(), list_where);
    } else {
      const std::string_view left = merge.element(0).text();
      merges.add(left, merge.element(1).text(), list_where);
    }
  });
  pipeline.model.emplace(Bpe(*pipeline.vocabulary, std::move(rules), merges.merges()));
}

void read_unigram(const JsonValue& value, Pipeline& pipeline) {
  const JsonValue vocab = value.at("vocab");
  const std::string where = vocab.where();
  std::vector<Unigram::ScoredPiece> pieces;
  vocab.each([&](const JsonValue& entry) {
    const auto id = static_cast<int64_t>(pieces.size());
    pieces.push_back({entry.element(0).text(), id, entry.element(1).number()});
    pipeline.vocabulary->add(pieces.back().text, id, where);
  });
  Unigram::Rules rules;
  rules.byte_fallback = value.flag_or("byte_fallback", false);
  if (const auto unk = value.find("unk_id")) {
    rules.unk = unk->integer();
    if (rules.unk < 0 || rules.unk >= static_cast<int64_t>(pieces.size())) {
      unk->refuse("must be the number of a piece, 0 to ", static_cast<int64_t>(pieces.size()) - 1,
                  ", got ", rules.unk);
    }
    pipeline.special.unk = rules.unk;
  }
  pipeline.model.emplace(Unigram(*pipeline.vocabulary, rules, pieces, where));
}

void read_word_piece(const JsonValue& value, Pipeline& pipeline) {
  const JsonValue vocab = value.at("vocab");
  const std::string where = vocab.where();
  vocab.each_member([&](std::string_view token, const JsonValue& id) {
    pipeline.vocabulary->add(token, id.integer(), where);
  });
  WordPiece::Rules rules;
  rules.unk = pipeline.vocabulary->id_of(value.text_or("unk_token", "[UNK]"));
  rules.continuing_subword_prefix =
      value.text_or("continuing_subword_prefix", rules.continuing_subword_prefix);
  if (const auto most = value.find("max_input_chars_per_word")) {
    rules.max_input_chars_per_word = most->integer();
  }
  pipeline.special.unk = rules.unk;
  pipeline.model.emplace(WordPiece(*pipeline.vocabulary, std::move(rules), where));
}

}  // namespace

void read_model(const JsonValue& value, Pipeline& pipeline) {
  // Older files do not say the type.
  const std::string type =
      value.text_or("type", value.find("merges")                     ? "BPE"
                            : value.find("max_input_chars_per_word") ? "WordPiece"
                                                                     : "Unigram");
  if (type == "BPE") {
    read_bpe(value, pipeline);
  } else if (type == "Unigram") {
    read_unigram(value, pipeline);
  } else if (type == "WordPiece") {
    read_word_piece(value, pipeline);
  } else {
    value.refuse("must be of type BPE, Unigram or WordPiece, got ", quote(type));
  }
}

void MergeList::add(std::string_view left, std::string_view right, std::string_view where) {
  std::string result(left);
  result += right.size() > prefix_bytes_ ? right.substr(prefix_bytes_) : "";
  const auto id_of = [&](std::string_view token) {
    const int64_t id = vocabulary_.id_of(token);
    KINORA_CHECK(id >= 0, kIo, where, ": merge ", merges_.size() + 1, " (", quote(left), " with ",
                 quote(right), ") must be of tokens in the vocabulary, which lacks ", quote(token));
    return id;
  };
  merges_.push_back(
      {id_of(left), id_of(right), id_of(result), static_cast<int64_t>(merges_.size())});
}

void MergeList::add(std::string_view line, std::string_view where) {
  const size_t space = line.find(' ');
  KINORA_CHECK(
      space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos, kIo,
      where, ": merge ", merges_.size() + 1, " must be two tokens with a space between them, got ",
      quote(line.substr(0, 60)));
  add(line.substr(0, space), line.substr(space + 1), where);
}

}  // namespace kinora::tokenizers
