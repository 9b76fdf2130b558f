#include "apps/kinora/caption_progress.h"

#include <iterator>
#include <utility>

#include "kinora/core/counted.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

std::string name_of_path(const fs::path& path) {
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

}  // namespace

std::optional<std::vector<std::string>> read_captions(const data::Source& source,
                                                      data::CaptionOptions options,
                                                      const StopSignal& stop, bool says) {
  std::optional<Progress> progress;
  if (says) {
    options.progress = [&progress](int64_t done, int64_t total) {
      if (!progress) {
        progress.emplace(total, "samples");
      }
      progress->update(static_cast<double>(done));
    };
  }
  data::SetCaptions captions = data::captions_of(source, options, &stop);
  progress.reset();
  if (!captions.complete) {
    log_info("[captions] stopped by ", stop.name(), " while captions were read");
    return {};
  }
  if (says) {
    log_info("[captions] ", counted(std::ssize(captions.all), "different caption"), " of ",
             counted(source.size() - captions.left_out, "sample"));
  }
  return std::move(captions.all);
}

std::map<std::string, std::string> text_metadata(const fs::path& encoder, const fs::path& tokenizer,
                                                 const std::string& computed_in, bool cleaned) {
  return {
      {"text_encoder", name_of_path(encoder) + ", " + pipelines::text_encoder_fingerprint(encoder)},
      {"tokenizer", name_of_path(tokenizer) + ", " + pipelines::tokenizer_fingerprint(tokenizer)},
      {"computed_in", computed_in},
      {"cleaned", cleaned ? "yes" : "no"}};
}

pipelines::CaptionEmbeddingResult embed_captions(const std::vector<std::string>& captions,
                                                 models::TextEncoder& encoder,
                                                 const data::CaptionTokens& tokens,
                                                 pipelines::CaptionEmbeddingOptions options,
                                                 const StopSignal& stop) {
  std::optional<Progress> progress;
  if (options.ranks.rank() == 0) {
    options.progress = [&progress](int64_t done, int64_t total, int64_t before) {
      if (!progress) {
        progress.emplace(total, "captions", before);
      }
      progress->update(static_cast<double>(done));
    };
  }
  return pipelines::encode_captions(captions, encoder, tokens, options, &stop);
}

}  // namespace kinora::apps
