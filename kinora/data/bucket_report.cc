#include "kinora/data/bucket_report.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <ostream>
#include <sstream>
#include <utility>

#include "kinora/core/counted.h"

namespace kinora::data {
namespace {

std::string with_digits(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string frames_text(int64_t frames) {
  return counted(frames, "frame");
}

void print_head(std::ostream& out) {
  out << "    " << std::left << std::setw(10) << "resolution" << std::right << std::setw(8)
      << "frames" << std::setw(7) << "ratio" << std::setw(17) << "height x width" << std::setw(8)
      << "batch" << std::setw(11) << "samples" << std::setw(9) << "steps" << std::setw(9)
      << "waiting" << '\n';
}

void print(std::ostream& out, const BucketUse& use) {
  const Bucket& bucket = use.bucket;
  out << "    " << std::left << std::setw(10) << bucket.resolution << std::right << std::setw(8)
      << bucket.frames << std::setw(7) << with_digits(bucket.ratio, 2) << std::setw(17)
      << std::to_string(bucket.height) + " x " + std::to_string(bucket.width) << std::setw(8)
      << bucket.batch << std::setw(11) << use.num_samples << std::setw(9) << use.steps()
      << std::setw(9) << use.num_waiting() << (use.is_short() ? "  no step in this epoch" : "")
      << '\n';
}

// A line for each row of the table that has such.
void print_empty(std::ostream& out, const std::vector<BucketUse>& buckets) {
  const int64_t count = std::ranges::count(buckets, 0, &BucketUse::num_samples);
  out << "    empty buckets: " << count << " of " << buckets.size() << '\n';
  for (size_t i = 0; i < buckets.size();) {
    const Bucket& first = buckets[i].bucket;
    std::string ratios;
    bool is_all = true;
    for (; i < buckets.size() && buckets[i].bucket.row == first.row; ++i) {
      if (buckets[i].num_samples == 0) {
        ratios += ' ' + with_digits(buckets[i].bucket.ratio, 2);
      }
      is_all = is_all && buckets[i].num_samples == 0;
    }
    if (!ratios.empty()) {
      out << "      " << first.resolution << ", " << frames_text(first.frames)
          << (is_all ? ": all ratios" : ": ratios" + ratios) << '\n';
    }
  }
}

}  // namespace

int64_t BucketReport::num_taken() const {
  return std::transform_reduce(buckets.begin(), buckets.end(), int64_t{0}, std::plus<>(),
                               [](const BucketUse& use) { return use.num_samples; });
}

std::vector<ScaledBatches> BucketReport::scaled() const {
  std::vector<ScaledBatches> all;
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    ScaledBatches scaled{.factor = factor};
    for (BucketUse use : buckets) {
      const auto batch = static_cast<int64_t>(factor * static_cast<double>(use.bucket.batch));
      use.step_samples = std::max<int64_t>(batch, 1) * batches_per_step;
      scaled.steps += use.steps();
      scaled.num_waiting += use.num_waiting();
      scaled.num_short_buckets += use.is_short() ? 1 : 0;
    }
    all.push_back(scaled);
  }
  return all;
}

BucketReport report_on_buckets(const Source& source, const BucketOrderOptions& options) {
  const BucketOrder order(source, options);
  BucketReport report{.seed = options.seed,
                      .batches_per_step = options.batches_per_step,
                      .num_samples = source.size(),
                      .num_not_kept = source.size(),
                      .buckets = {},
                      .left_out = order.left_out()};
  const std::vector<int64_t> counts = order.counts(/*epoch=*/0);
  const std::vector<Bucket>& buckets = order.table().buckets();
  for (size_t i = 0; i < buckets.size(); ++i) {
    report.buckets.push_back({.bucket = buckets[i],
                              .num_samples = counts[i],
                              .step_samples = buckets[i].batch * options.batches_per_step});
  }
  report.num_not_kept -= report.num_taken();
  for (const MisfitGroup& group : report.left_out) {
    report.num_not_kept -= group.count;
  }
  return report;
}

void print(std::ostream& out, const BucketReport& report) {
  out << "  buckets in the first epoch of train.seed " << report.seed << ", "
      << counted(report.batches_per_step, "batch", "batches") << " of one bucket a step\n";
  print_head(out);
  for (const BucketUse& use : report.buckets) {
    if (use.num_samples > 0) {
      print(out, use);
    }
  }
  out << "    samples in a bucket: " << report.num_taken() << " of " << report.num_samples << '\n';
  for (const MisfitGroup& group : report.left_out) {
    out << "      " << group.cause << ": " << group.count << ", the first " << group.first << '\n';
  }
  if (report.num_not_kept > 0) {
    out << "      left out of this epoch by the keep probabilities: " << report.num_not_kept
        << '\n';
  }
  print_empty(out, report.buckets);
  out << "  other batch sizes (steps an epoch, samples waiting at its end, buckets that fill no "
         "step)\n";
  for (const ScaledBatches& scaled : report.scaled()) {
    out << "    x " << scaled.factor << ": " << scaled.steps << ", " << scaled.num_waiting << ", "
        << scaled.num_short_buckets << (scaled.factor == 1.0 ? "  <- as configured" : "") << '\n';
  }
}

}  // namespace kinora::data
