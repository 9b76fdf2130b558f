#include "kinora/train/frozen_encoder.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/bucket.h"
#include "kinora/data/latent_cache.h"
#include "kinora/inference/setup.h"
#include "kinora/io/safetensors.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/text_encoder_file.h"

namespace kinora::train {
namespace {

/// A cache of latents must be of the run's autoencoder, however that computes.
void check_cache(const data::DataConfig& data, const std::string& fingerprint) {
  if (data.source != data::SourceKind::kLatents || data.path.size() != 1) {
    return;
  }
  const auto manifest = data::read_manifest(data.path.front());
  const std::string of_cache = manifest ? manifest->key.at("autoencoder") : fingerprint;
  KINORA_CHECK(of_cache.starts_with(fingerprint), kConfig, "[train] the latents in ",
               data.path.front(), " are of another autoencoder than autoencoder.path: ", of_cache,
               ", got ", fingerprint, ". Hint: kinora data encode");
}

/// Of the samples of a set, the most rows of pixels; 0: it has no pixels.
int64_t most_rows(const data::DataConfig& set) {
  if (set.source == data::SourceKind::kLatents) {
    return 0;
  }
  int64_t rows = set.height;
  if (!set.buckets.empty()) {
    const data::BucketTable table(data::loader_options(set).buckets);
    for (const data::Bucket& bucket : table.buckets()) {
      rows = std::max(rows, bucket.height);
    }
  }
  return rows;
}

}  // namespace

std::string autoencoder_key(const inference::AutoencoderOptions& options) {
  return pipelines::fingerprint(options.path) + " in " +
         std::string(at::toString(inference::compute_type(options.precision)));
}

std::unique_ptr<FrozenEncoder> open_encoder(const inference::AutoencoderOptions& options,
                                            std::initializer_list<const data::DataConfig*> sets,
                                            at::Device device) {
  if (options.path.empty()) {
    return nullptr;
  }
  const std::string fingerprint = pipelines::fingerprint(options.path);
  for (const data::DataConfig* set : sets) {
    check_cache(*set, fingerprint);
  }
  auto autoencoder =
      pipelines::open_autoencoder(options.path, device, inference::compute_type(options.precision));
  autoencoder->set_memory_budget(
      static_cast<int64_t>(options.memory_gib * static_cast<double>(int64_t{1} << 30)));
  const pipelines::LatentEncoder encoder(
      *autoencoder, device,
      options.micro_batch > 0 ? options.micro_batch : inference::AutoencoderOptions::kMicroBatch);
  return std::make_unique<FrozenEncoder>(FrozenEncoder{std::move(autoencoder), encoder});
}

comm::Group encoding_ranks(const RunConfig& config, const FrozenEncoder* encoder,
                           const parallel::Mesh& mesh) {
  const comm::Group& ranks = mesh.sample_group();
  if (encoder == nullptr || ranks.size() == 1 || config.dynamic_sequence) {
    return {};
  }
  const int64_t rows =
      std::max({most_rows(config.data), config.image_steps.any() ? most_rows(config.image_data) : 0,
                config.prior.any() ? most_rows(config.prior_data) : 0});
  if (!models::Autoencoder::divides(rows / encoder->encoder.space().compression, ranks.size())) {
    return {};
  }
  std::vector<int64_t> all(static_cast<size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  return ranks.split({all});
}

void check_cached_texts(const std::string& text_encoder,
                        std::initializer_list<const data::DataConfig*> sets) {
  for (const data::DataConfig* set : sets) {
    if (text_encoder.empty() || set->text != data::TextKind::kFile ||
        !set->text_embeddings.empty()) {
      continue;
    }
    const auto file = io::SafetensorsFile::open(data::text_file_of(*set));
    const auto made_by = file.metadata().find("text_encoder");
    const std::string other = made_by == file.metadata().end() ? "none" : made_by->second;
    const std::string own = pipelines::text_encoder_fingerprint(text_encoder);
    KINORA_CHECK(other.ends_with(own), kConfig, "[train] the texts in ", file.path().string(),
                 " are of another text encoder than text.encoder: ", other, ", got ", own,
                 ". Hint: kinora data encode");
  }
}

}  // namespace kinora::train
