#pragma once

#include <memory>
#include <string>
#include <variant>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/models/text_encoders/clip_image_encoder.h"
#include "kinora/models/text_encoders/clip_text_encoder.h"
#include "kinora/models/text_encoders/ldm_bert_encoder.h"
#include "kinora/models/text_encoders/llama_encoder.h"
#include "kinora/models/text_encoders/llava_encoder.h"
#include "kinora/models/text_encoders/t5_encoder.h"

namespace kinora::pipelines {

/// How a text encoder is built.
using TextEncoderConfig =
    std::variant<models::T5Config, models::ClipTextConfig, models::LlamaConfig, models::LlavaConfig,
                 models::LdmBertConfig>;

/// From config.json of transformers: model_type t5, mt5, umt5, llama, llava, ldmbert,
/// clip_text_model, or clip, of which the text tower is taken. `where` names it in errors: kIo for
/// what is no such file, kConfig for what is not known and for sizes out of range. CLIP has a
/// projection only where the architecture has one.
[[nodiscard]] TextEncoderConfig parse_text_encoder_config(const std::string& json,
                                                          const std::string& where);

/// How the image tower of a CLIP is built, from CLIPModel's config.json (model_type clip). Errors
/// likewise.
[[nodiscard]] models::ClipImageConfig parse_image_encoder_config(const std::string& json,
                                                                 const std::string& where);

/// Whether the text of config.json is of a text encoder that parse_text_encoder_config() knows.
[[nodiscard]] bool is_text_encoder_config(const std::string& json);

/// From the shapes of weights under our paths, for files without config.json. What shapes do not
/// tell is as published: T5's distances end at 128, gated T5 takes gelu_new and the other relu;
/// CLIP's heads have 64 channels, its towers of 512 and 768 channels take quick_gelu and the others
/// gelu, and texts are pooled by the old rule; a Llama is of the third generation: heads of 128
/// channels, positions of base 5e5, norms of 1e-5; BERT's heads have 64 channels. `where` names
/// them in errors (kIo).
[[nodiscard]] models::T5Config t5_config_of(const checkpoint::LateTensors& tensors,
                                            const std::string& where);
[[nodiscard]] models::ClipTextConfig clip_config_of(const checkpoint::LateTensors& tensors,
                                                    const std::string& where);
[[nodiscard]] models::LlamaConfig llama_config_of(const checkpoint::LateTensors& tensors,
                                                  const std::string& where);
[[nodiscard]] models::LdmBertConfig bert_config_of(const checkpoint::LateTensors& tensors,
                                                   const std::string& where);

/// Without weights.
[[nodiscard]] std::unique_ptr<models::TextEncoder> make_text_encoder(
    const TextEncoderConfig& config);

}  // namespace kinora::pipelines
