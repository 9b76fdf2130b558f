#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/tokenizers/json_value.h"
#include "kinora/tokenizers/pipeline.h"

namespace kinora::tokenizers {
namespace {

int64_t checked_id(const JsonValue& value) {
  const int64_t id = value.integer();
  if (id < 0 || id >= kMaxTokenId) {
    value.refuse("must be an id of 0 to ", kMaxTokenId - 1, ", got ", id);
  }
  return id;
}

/// A processor around those that are there.
void wrap(const std::vector<int64_t>& before, const std::vector<int64_t>& after,
          Pipeline& pipeline) {
  pipeline.before.insert(pipeline.before.begin(), before.begin(), before.end());
  pipeline.after.insert(pipeline.after.end(), after.begin(), after.end());
}

void read_template(const JsonValue& value, Pipeline& pipeline) {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  int num_texts = 0;
  value.at("single").each([&](const JsonValue& part) {
    if (const auto sequence = part.find("Sequence")) {
      ++num_texts;
      return;
    }
    const std::string name(part.at("SpecialToken").at("id").text());
    value.at("special_tokens").at(name).at("ids").each([&](const JsonValue& id) {
      (num_texts == 0 ? before : after).push_back(checked_id(id));
    });
  });
  if (num_texts != 1) {
    value.at("single").refuse("must have the text once, got ", num_texts, " times");
  }
  wrap(before, after, pipeline);
}

void read_post_processor(const JsonValue& value, Pipeline& pipeline) {
  const std::string_view type = value.at("type").text();
  if (type == "Sequence") {
    value.at("processors").each([&](const JsonValue& each) {
      read_post_processor(each, pipeline);
    });
  } else if (type == "TemplateProcessing") {
    read_template(value, pipeline);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    wrap({checked_id(value.at("cls").element(1))}, {checked_id(value.at("sep").element(1))},
         pipeline);
  } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
    value.refuse(
        "must be TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel or Sequence, "
        "got ",
        quote(type));
  }
}

void read_added_token(const JsonValue& value, Pipeline& pipeline) {
  AddedToken token;
  token.content = value.at("content").text();
  token.id = checked_id(value.at("id"));
  token.single_word = value.flag_or("single_word", false);
  token.lstrip = value.flag_or("lstrip", false);
  token.rstrip = value.flag_or("rstrip", false);
  token.special = value.flag_or("special", false);
  token.normalized = value.flag_or("normalized", !token.special);
  pipeline.add_token(std::move(token));
}

}  // namespace

Pipeline read_tokenizer_json(const TokenizerFiles& files) {
  const JsonFile file(files.at(files.main()));
  const JsonValue root = file.root();
  Pipeline pipeline;
  pipeline.where = root.where();
  if (const auto value = root.find("normalizer")) {
    read_normalizer(*value, pipeline.normalizers);
  }
  if (const auto value = root.find("pre_tokenizer")) {
    read_pre_tokenizer(*value, pipeline.pre_tokenizers);
  }
  read_model(root.at("model"), pipeline);
  if (const auto value = root.find("post_processor")) {
    read_post_processor(*value, pipeline);
  }
  if (const auto value = root.find("decoder")) {
    read_decoder(*value, pipeline.decoders.emplace());
    // CLIP's files leave this to transformers.
    const std::string suffix = root.at("model").text_or("end_of_word_suffix", "");
    if (!suffix.empty() && value->at("type").text() == "ByteLevel") {
      add_suffix_decoders(suffix, *pipeline.decoders);
    }
  }
  if (const auto value = root.find("added_tokens")) {
    value->each([&](const JsonValue& each) { read_added_token(each, pipeline); });
  }
  // What SentencePiece and BERT call them, for files without a tokenizer_config.json.
  SpecialTokens& special = pipeline.special;
  const auto either = [&pipeline](std::string_view first, std::string_view second) {
    return std::max(pipeline.id_of(first), pipeline.id_of(second));
  };
  special.bos = either("<s>", "[CLS]");
  special.eos = either("</s>", "[SEP]");
  special.pad = either("<pad>", "[PAD]");
  if (special.unk < 0) {
    special.unk = pipeline.id_of("<unk>");
  }
  return pipeline;
}

}  // namespace kinora::tokenizers
