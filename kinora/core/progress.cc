#include "kinora/core/progress.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kinora/core/seconds.h"
#include "kinora/core/text.h"

namespace kinora {
namespace {

constexpr double kWindow = 60.0;         // seconds
constexpr size_t kWindowUpdates = 10;    // kept even if they took longer than the window
constexpr int64_t kWarmUpUpdates = 3;    // compilers, caches and autotuners run in these
constexpr double kSampleSpacing = 0.1;   // seconds; bounds the window's memory
constexpr double kRounding = 1e-6;       // of fractions that add up to a whole unit
constexpr double kRedrawInterval = 0.1;  // seconds
constexpr int kMostBarColumns = 30;
constexpr int kFewestBarColumns = 5;

}  // namespace

Progress::Progress(int64_t total, std::string unit, int64_t start, ProgressOptions options)
    : total_(total),
      unit_(std::move(unit)),
      start_(start),
      options_(std::move(options)),
      start_time_(now()),
      done_(static_cast<double>(start)),
      window_{{start_time_, done_}},
      last_shown_(-std::numeric_limits<double>::infinity()) {}

Progress::~Progress() {
  finish();
}

double Progress::now() const {
  return options_.clock ? options_.clock() : steady_seconds();
}

void Progress::update(double done, std::string_view suffix) {
  if (finished_) {
    return;
  }
  const double time = now();
  done_ = done;
  suffix_ = suffix;
  ++num_updates_;
  remember(time);
  const bool redraws = options_.console->columns() > 0;
  const bool complete = total_ > 0 && done_ >= static_cast<double>(total_);  // finish will say it
  if (time - last_shown_ >= (redraws ? kRedrawInterval : options_.plain_interval) &&
      (redraws || !complete)) {
    show(time);
  }
}

void Progress::remember(double time) {
  if (num_updates_ == kWarmUpUpdates + 1) {
    window_ = {window_.back()};  // the rate starts to count here
  }
  // The newest sample is provisional until it is far enough from the one before it.
  const size_t size = window_.size();
  if (size >= 2 && window_[size - 1].time - window_[size - 2].time < kSampleSpacing) {
    window_.pop_back();
  }
  window_.push_back({time, done_});
  while (window_.size() > kWindowUpdates && time - window_[1].time >= kWindow) {
    window_.pop_front();
  }
}

std::string Progress::count() const {
  std::string text = std::to_string(static_cast<int64_t>(done_ + kRounding));
  if (total_ > 0) {
    text += "/" + std::to_string(total_);
  }
  return text + " " + unit_;
}

std::string Progress::line(int columns) const {
  std::string text = count();
  const Sample& oldest = window_.front();
  const Sample& newest = window_.back();
  if (newest.time > oldest.time && newest.done > oldest.done) {
    const double rate = (newest.done - oldest.done) / (newest.time - oldest.time);
    text += "  " + human_rate(rate) + " " + unit_ + "/s";
    if (total_ > 0) {
      const double left = std::max(static_cast<double>(total_) - done_, 0.0);
      text += "  ETA " + human_duration(left / rate);
    }
  }
  if (!suffix_.empty()) {
    text += "  " + suffix_;
  }
  if (total_ <= 0) {
    return text;
  }
  const double part = std::clamp(done_ / static_cast<double>(total_), 0.0, 1.0);
  std::string percent = std::to_string(static_cast<int>(100.0 * part)) + "%";
  percent.insert(0, 4 - std::min<size_t>(percent.size(), 4), ' ');
  // "100% [####......]  " before the text, if the terminal has room for it
  const int bar = std::min(kMostBarColumns, columns - 1 - static_cast<int>(text.size()) - 9);
  if (bar < kFewestBarColumns) {
    return percent + "  " + text;
  }
  const auto full = static_cast<size_t>(part * bar);
  return percent + " [" + std::string(full, '#') +
         std::string(static_cast<size_t>(bar) - full, '.') + "]  " + text;
}

void Progress::show(double time) {
  last_shown_ = time;
  const int columns = options_.console->columns();
  if (columns > 0) {
    options_.console->set_status(line(columns));
  } else {
    options_.console->print_line(line(0));
  }
}

void Progress::finish() {
  if (std::exchange(finished_, true) || num_updates_ == 0) {
    return;
  }
  const double seconds = now() - start_time_;
  std::string text = count() + " in " + human_duration(seconds);
  const double own = done_ - static_cast<double>(start_);
  if (seconds > 0.0 && own > 0.0) {
    text += "  " + human_rate(own / seconds) + " " + unit_ + "/s";
  }
  if (!suffix_.empty()) {
    text += "  " + suffix_;
  }
  options_.console->set_status("");
  options_.console->print_line(text);
}

}  // namespace kinora
