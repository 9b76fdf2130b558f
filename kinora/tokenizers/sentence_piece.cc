#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"
#include "kinora/tokenizers/protobuf.h"

namespace kinora::tokenizers {
namespace {

// Numbers of fields and enumerators: sentencepiece_model.proto.
enum PieceType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};
enum ModelType { kUnigramModel = 1, kBpeModel = 2 };

struct ModelPiece {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormal;
};

struct ModelFile {
  std::vector<ModelPiece> pieces;
  uint64_t model_type = kUnigramModel;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  int64_t unk = 0;
  int64_t bos = 1;
  int64_t eos = 2;
  int64_t pad = -1;
  std::string_view map;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

ModelPiece read_piece(ProtobufMessage message) {
  ModelPiece piece;
  while (const auto field = message.next()) {
    if (field->number == 1) {
      piece.text = field->bytes();
    } else if (field->number == 2) {
      piece.score = field->single();
    } else if (field->number == 3) {
      piece.type = field->integer();
    }
  }
  return piece;
}

void read_trainer(ProtobufMessage message, ModelFile& model) {
  const auto id = [](const ProtobufField& field) {
    return static_cast<int64_t>(static_cast<int32_t>(field.integer()));
  };
  while (const auto field = message.next()) {
    switch (field->number) {
      case 3:
        model.model_type = field->integer();
        break;
      case 24:
        model.whitespace_as_suffix = field->integer() != 0;
        break;
      case 35:
        model.byte_fallback = field->integer() != 0;
        break;
      case 40:
        model.unk = id(*field);
        break;
      case 41:
        model.bos = id(*field);
        break;
      case 42:
        model.eos = id(*field);
        break;
      case 43:
        model.pad = id(*field);
        break;
      default:
        break;
    }
  }
}

void read_rules(ProtobufMessage message, ModelFile& model) {
  while (const auto field = message.next()) {
    if (field->number == 2) {
      model.map = field->bytes();
    } else if (field->number == 3) {
      model.add_dummy_prefix = field->integer() != 0;
    } else if (field->number == 4) {
      model.remove_extra_whitespaces = field->integer() != 0;
    } else if (field->number == 5) {
      model.escape_whitespaces = field->integer() != 0;
    }
  }
}

ModelFile read_model_file(std::string_view bytes, const std::string& where) {
  ModelFile model;
  ProtobufMessage message(bytes, where);
  while (const auto field = message.next()) {
    if (field->number == 1) {
      model.pieces.push_back(read_piece({field->bytes(), where}));
    } else if (field->number == 2) {
      read_trainer({field->bytes(), where}, model);
    } else if (field->number == 3) {
      read_rules({field->bytes(), where}, model);
    }
  }
  KINORA_CHECK(!model.pieces.empty(), kIo, where,
               " must be a model of SentencePiece, got a file without pieces");
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const ModelPiece& piece = model.pieces[i];
    KINORA_CHECK(!piece.text.empty() && is_utf8(piece.text), kIo, where, " piece ", i,
                 " must be UTF-8 and not empty, got ", quote(printable(piece.text.substr(0, 60))));
    KINORA_CHECK(piece.text.size() <= Unigram::kMaxPieceBytes, kIo, where, " piece ", i,
                 " must have at most ", Unigram::kMaxPieceBytes, " bytes, got ", piece.text.size());
    KINORA_CHECK(std::isfinite(piece.score), kIo, where, " piece ", i,
                 " must have a finite score, got ", piece.score);
  }
  return model;
}

/// Whether a run of characters may become this piece.
bool may_be_found(const ModelPiece& piece) {
  return piece.type == kNormal || piece.type == kUserDefined;
}

void set_sentence_piece_model(const ModelFile& file, Pipeline& pipeline) {
  const std::string& where = pipeline.where;
  KINORA_CHECK(file.unk >= 0 && file.unk < static_cast<int64_t>(file.pieces.size()), kIo, where,
               " unk_id must be the number of a piece, got ", file.unk);
  if (file.byte_fallback) {
    const auto ids = pipeline.vocabulary->byte_ids();
    for (size_t byte = 0; byte < ids.size(); ++byte) {
      KINORA_CHECK(ids[byte] >= 0, kIo, where,
                   " a model with byte_fallback must have a piece of each byte, got none of ",
                   byte);
    }
  }
  if (file.model_type == kUnigramModel) {
    std::vector<Unigram::ScoredPiece> pieces;
    for (size_t i = 0; i < file.pieces.size(); ++i) {
      const ModelPiece& piece = file.pieces[i];
      if (piece.type == kNormal) {
        pieces.push_back({piece.text, static_cast<int64_t>(i), piece.score});
      }
    }
    pipeline.model.emplace(
        Unigram(*pipeline.vocabulary,
                {.unk = file.unk, .byte_fallback = file.byte_fallback, .single_precision = true},
                pieces, where));
    return;
  }
  KINORA_CHECK(file.model_type == kBpeModel, kIo, where,
               " must be a model of type 1 (unigram) or 2 (BPE), got ", file.model_type);
  std::vector<Bpe::ScoredPiece> pieces;
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const ModelPiece& piece = file.pieces[i];
    KINORA_CHECK(piece.type != kUnused, kIo, where,
                 " a model of type BPE must not have unused pieces, got ", quote(piece.text));
    if (may_be_found(piece)) {
      pieces.push_back({std::string(piece.text), static_cast<int64_t>(i), piece.score});
    }
  }
  Bpe::Rules rules;
  rules.unk = file.unk;
  rules.byte_fallback = file.byte_fallback;
  pipeline.model.emplace(Bpe::of_sentence_piece(*pipeline.vocabulary, std::move(rules), pieces));
}

/// Control tokens are looked for in the text, as Hugging Face does; symbols of the user stay as
/// SentencePiece finds them, in the normalised text.
void set_sentence_piece_tokens(const ModelFile& file, Pipeline& pipeline) {
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    const ModelPiece& piece = file.pieces[i];
    if (piece.type == kControl || piece.type == kUnknown || piece.type == kUserDefined) {
      const bool is_special = piece.type != kUserDefined;
      AddedToken token{.content = std::string(piece.text), .id = static_cast<int64_t>(i)};
      token.special = is_special;
      token.normalized = !is_special;
      pipeline.added.add(std::move(token), piece.text);
    }
  }
}

void set_extra_ids(const ModelFile& file, const SentencePieceSpecials& specials,
                   Pipeline& pipeline) {
  const bool has_own = pipeline.id_of("<extra_id_0>") >= 0;
  const bool is_t5 = file.model_type == kUnigramModel && !has_own;
  const int64_t count = specials.num_extra_ids.value_or(is_t5 ? 100 : 0);
  const int64_t first = pipeline.vocabulary->size();
  for (int64_t i = 0; i < count && !has_own; ++i) {
    AddedToken token;
    token.content = "<extra_id_" + std::to_string(count - 1 - i) + ">";
    token.id = first + i;
    pipeline.add_token(std::move(token));
  }
}

}  // namespace

Pipeline read_sentence_piece(const TokenizerFiles& files, const SentencePieceSpecials& specials) {
  const TokenizerFiles::File& main = files.at(files.main());
  Pipeline pipeline;
  pipeline.where = "[tokenizer] " + printable_line(main.shown) + ":";
  const ModelFile file = read_model_file(main.bytes, pipeline.where);
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    pipeline.vocabulary->add(file.pieces[i].text, static_cast<int64_t>(i), pipeline.where);
  }
  SentencePieceRules rules;
  if (!file.map.empty()) {
    rules.map.emplace(file.map, pipeline.where);
  }
  for (size_t i = 0; i < file.pieces.size(); ++i) {
    if (file.pieces[i].type == kUserDefined) {
      rules.kept.add(file.pieces[i].text, static_cast<int64_t>(i));
    }
  }
  rules.add_dummy_prefix = file.add_dummy_prefix;
  rules.remove_extra_whitespaces = file.remove_extra_whitespaces;
  rules.escape_whitespaces = file.escape_whitespaces;
  rules.whitespace_as_suffix = file.whitespace_as_suffix;
  pipeline.normalizers.emplace_back(std::move(rules));
  set_sentence_piece_model(file, pipeline);
  set_sentence_piece_tokens(file, pipeline);
  set_extra_ids(file, specials, pipeline);

  const auto known = [&](int64_t id) { return pipeline.vocabulary->token_of(id) ? id : -1; };
  pipeline.special = {known(file.bos), known(file.eos), known(file.pad), known(file.unk)};
  const bool is_bpe = file.model_type == kBpeModel;
  if (specials.add_bos.value_or(is_bpe) && pipeline.special.bos >= 0) {
    pipeline.before = {pipeline.special.bos};
  }
  if (specials.add_eos.value_or(!is_bpe) && pipeline.special.eos >= 0) {
    pipeline.after = {pipeline.special.eos};
  }
  auto& decoders = pipeline.decoders.emplace();
  decoders.emplace_back(DecodeReplace{Pattern::of_text("\xE2\x96\x81"), " "});
  decoders.emplace_back(DecodeByteFallback{});
  decoders.emplace_back(DecodeFuse{});
  if (file.add_dummy_prefix && !file.whitespace_as_suffix) {
    decoders.emplace_back(DecodeStrip{" ", 1, 0});
  }
  return pipeline;
}

}  // namespace kinora::tokenizers
