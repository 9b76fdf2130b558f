#include "apps/kinora/eval_scores.h"

#include <algorithm>
#include <utility>

#include "apps/kinora/eval_progress.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/eval/class_agreement.h"
#include "kinora/eval/inception_score.h"
#include "kinora/eval/kernel_distance.h"
#include "kinora/eval/manifold.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInceptionName = "inception-v3-fid";

}  // namespace

FeatureScores::FeatureScores(const EvalOptions& options, const comm::Group& group,
                             at::Device device)
    : options_(options), group_(group), device_(device) {
  const bool compares = wants("frechet") || wants("fid") || wants("prdc") || wants("kernel");
  KINORA_CHECK(!compares || !options.reference.empty(), kConfig,
               "[eval] frechet, fid, prdc and kernel compare with a reference, got none");
  const bool needs_pairs = wants("prdc") || wants("kernel");
  samples_ =
      open_side(options.samples, needs_pairs || wants("is") || wants("classes"), options.set);
  if (!options.reference.empty()) {
    eval::SampleSetOptions of_reference = options.set;
    of_reference.labels.clear();
    reference_ = open_side(options.reference, needs_pairs, of_reference);
  }
  const bool needs_network = samples_.set || (reference_ && reference_->set);
  if (needs_network) {
    KINORA_CHECK(
        !options.network.weights.empty() || !options.network.script.empty(), kConfig,
        "[eval] images and clips need a feature network: --features FILE, or --torchscript "
        "FILE");
    network_ = eval::open_network(options.network, device);
    network_name_ = network_->name();
  }
  for (const Side* side : {&samples_, reference_ ? &*reference_ : nullptr}) {
    if (side == nullptr || !side->statistics || side->statistics->network.empty()) {
      continue;
    }
    const std::string& name = side->statistics->network;
    KINORA_CHECK(network_name_.empty() || network_name_ == name, kConfig,
                 "[eval] both sides must be of one network, got ", network_name_, " and ", name,
                 " in ", side->path);
    network_name_ = name;
  }
  KINORA_CHECK(!wants("fid") || is_fid(), kConfig,
               "[eval] fid is the Frechet distance of the Inception's features, and these are of ",
               network_name_.empty() ? "a network that is not named" : network_name_,
               ". Hint: --metrics frechet");
}

Side FeatureScores::open_side(const std::string& path, bool needs_samples,
                              const eval::SampleSetOptions& options) const {
  Side side{.path = path, .set = {}, .table = {}, .statistics = {}};
  if (fs::path(path).extension() == ".npz") {
    const auto file = io::NpzFile::open(path);
    side.statistics = eval::read_statistics(file);
    const bool has_samples = file.contains("arr_0");
    KINORA_CHECK(side.statistics || has_samples, kIo, "[eval] ", path,
                 " must hold mu and sigma, or images as arr_0");
    if (side.statistics) {
      side.num_samples = side.statistics->gaussian.count;
    }
    if (side.statistics && !needs_samples) {
      return side;
    }
    KINORA_CHECK(has_samples, kConfig, "[eval] ", path,
                 " holds only statistics, of which frechet and fid can be computed, but not is, "
                 "prdc, kernel and classes");
  }
  side.set = eval::SampleSet::open(path, options);
  side.num_samples = side.set->size();
  return side;
}

bool FeatureScores::wants(const char* metric) const {
  return std::find(options_.metrics.begin(), options_.metrics.end(), metric) !=
         options_.metrics.end();
}

bool FeatureScores::is_fid() const {
  return network_ != nullptr ? network_->is_fid() : network_name_.starts_with(kInceptionName);
}

void FeatureScores::read_features(Side& side) {
  if (!side.set) {
    return;
  }
  const eval::ExtractOptions options = shown_extraction(options_, group_, device_);
  // Frechet distances and files of statistics need no more of a set, however large it is.
  if (!wants("is") && !wants("prdc") && !wants("kernel") && !wants("classes")) {
    keep_gaussian(side, eval::extract_gaussian(*side.set, *network_, group_, options));
    return;
  }
  side.table = eval::extract(*side.set, *network_, group_, options);
}

void FeatureScores::keep_gaussian(Side& side, const eval::Gaussian& gaussian) {
  side.statistics =
      eval::StoredStatistics{.gaussian = gaussian, .spatial = {}, .network = network_name_};
  const int64_t dim = gaussian.mean.numel();
  if (group_.rank() == 0 && gaussian.count <= dim) {
    log_warn("[eval] ", side.path, " has ", gaussian.count, " samples for ", dim,
             " features: the covariance is not of full rank, and the distance is far too large to "
             "compare with figures of other numbers of samples");
  }
}

void FeatureScores::find_gaussian(Side& side) {
  if (side.statistics) {
    return;
  }
  const at::Tensor& features = side.table->features;
  eval::FeatureStatistics statistics(features.size(1));
  statistics.add(features);
  keep_gaussian(side, statistics.gaussian());
}

std::vector<Score> FeatureScores::compute() {
  read_features(samples_);
  if (reference_) {
    read_features(*reference_);
  }
  std::vector<Score> scores;
  if (!options_.out.empty()) {
    find_gaussian(samples_);
    if (group_.rank() == 0) {
      eval::write_statistics(options_.out, samples_.statistics->gaussian, network_name_);
    }
  }
  if (wants("frechet") || wants("fid")) {
    add_frechet(scores);
  }
  add_features(scores);
  if (wants("classes")) {
    add_classes(scores);
  }
  return scores;
}

void FeatureScores::add_frechet(std::vector<Score>& scores) {
  find_gaussian(samples_);
  find_gaussian(*reference_);
  const eval::StoredStatistics& a = *samples_.statistics;
  const eval::StoredStatistics& b = *reference_->statistics;
  std::string key = options_.set.frames > 0 ? "frechet_video_distance" : "frechet_distance";
  if (is_fid()) {
    key = "fid";
  }
  scores.push_back({key, eval::frechet_distance(a.gaussian, b.gaussian)});
  if (a.spatial && b.spatial) {
    scores.push_back({"spatial_frechet_distance", eval::frechet_distance(*a.spatial, *b.spatial)});
  }
}

void FeatureScores::add_features(std::vector<Score>& scores) const {
  if (wants("is")) {
    KINORA_CHECK(samples_.table->logits.defined(), kConfig,
                 "[eval] is needs a network with classes, got ", network_name_);
    const eval::InceptionScore score = eval::inception_score(samples_.table->logits);
    const std::string key = is_fid() ? "inception_score" : "inception_style_score";
    scores.push_back({key, score.mean});
    scores.push_back({key + "_std", score.std});
  }
  if (wants("prdc")) {
    const eval::ManifoldScores score =
        eval::manifold_scores(samples_.table->features, reference_->table->features);
    scores.push_back({"precision", score.precision});
    scores.push_back({"recall", score.recall});
    scores.push_back({"density", score.density});
    scores.push_back({"coverage", score.coverage});
  }
  if (wants("kernel")) {
    scores.push_back(
        {is_fid() ? "kid" : "kernel_distance",
         eval::kernel_distance(samples_.table->features, reference_->table->features)});
  }
}

void FeatureScores::add_classes(std::vector<Score>& scores) const {
  KINORA_CHECK(samples_.table->logits.defined(), kConfig,
               "[eval] classes needs a network with classes, got ", network_name_);
  const eval::ClassAgreement agreement =
      eval::class_agreement(samples_.table->logits, samples_.table->labels);
  scores.push_back({"class_agreement", static_cast<double>(agreement.num_right) /
                                           static_cast<double>(agreement.num_samples)});
}

}  // namespace kinora::apps
