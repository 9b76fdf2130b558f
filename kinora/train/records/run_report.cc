#include "kinora/train/records/run_report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/base64.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/io/image_resize.h"
#include "kinora/io/line_chart.h"
#include "kinora/io/picture_texts.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/records/run_state.h"
#include "kinora/train/run_config.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr size_t kShownSamples = 12;     // pictures in a page, evenly over the run
constexpr int kDigits = 4;               // of numbers in the table
constexpr int64_t kPictureWidth = 720;   // pixels at most
constexpr int64_t kSmoothingShare = 50;  // a mean is over two fiftieth parts of a curve

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1180px;padding:0 1em;"
    "color:#222;background:#fff}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}"
    "table{border-collapse:collapse}td{padding:.15em 1.2em .15em 0;vertical-align:top}"
    "td:first-child{color:#666}.charts{display:grid;gap:1em;"
    "grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}svg{width:100%;height:auto}"
    ".title{font:600 14px system-ui,sans-serif}.tick{font:11px system-ui,sans-serif;fill:#555}"
    ".grid{stroke:#e4e4e4}.samples{display:grid;gap:1em;"
    "grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr))}figure{margin:0}"
    "figure img{width:100%;image-rendering:auto}figcaption{color:#555}"
    "pre{background:#f6f6f6;padding:1em;overflow:auto}h1,td{overflow-wrap:anywhere}"
    ".fault{color:#a40000}summary{cursor:pointer}ol{margin:.3em 0;overflow-wrap:anywhere}";

/// The PNG grid at `path`, made smaller if need be, as an address that holds its content.
std::string picture(const fs::path& path) {
  const std::vector<std::byte> bytes = io::read_file(path, kMaxFileBytes);
  const io::ImageSize size = io::image_size(bytes, path.string());
  if (size.width <= kPictureWidth) {
    return "data:image/png;base64," + encode_base64(bytes);
  }
  const io::Image small = io::resize(io::decode_image(bytes, path.string()),
                                     std::max<int64_t>(size.height * kPictureWidth / size.width, 1),
                                     kPictureWidth, io::Filter::kBicubic);
  return "data:image/png;base64," + encode_base64(io::encode_png(small));
}

/// What the grid at `path` shows, row by row; none where it does not say.
std::vector<std::string> prompts_of_grid(const fs::path& path) {
  const std::vector<io::PictureText> texts = io::read_file_texts(path);
  const auto found = std::ranges::find(texts, kPromptsOfGrid, &io::PictureText::key);
  if (found == texts.end()) {
    return {};
  }
  const nlohmann::json json =
      nlohmann::json::parse(found->value, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> prompts;
  for (const nlohmann::json& prompt : json.is_array() ? json : nlohmann::json::array()) {
    if (prompt.is_string()) {
      prompts.push_back(prompt.get<std::string>());
    }
  }
  return prompts;
}

/// The same as a list; unfolded where it is wanted at once.
std::string prompt_list(const std::vector<std::string>& prompts, bool is_open) {
  if (prompts.empty()) {
    return "";
  }
  std::string list = std::string("<details") + (is_open ? " open" : "") +
                     "><summary>prompts, row by row</summary><ol>";
  for (const std::string& prompt : prompts) {
    list += "<li>" + io::escaped(printable(prompt)) + "</li>";
  }
  return list + "</ol></details>";
}

/// Grids of samples by step.
std::map<int64_t, fs::path> sample_grids(const fs::path& folder) {
  std::map<int64_t, fs::path> grids;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    return grids;
  }
  constexpr std::string_view kPrefix = "step-";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    int64_t step = 0;
    if (entry.path().extension() == ".png" && name.starts_with(kPrefix)) {
      const char* const end = name.data() + name.size();
      const auto read = std::from_chars(name.data() + kPrefix.size(), end, step);
      if (read.ec == std::errc() && read.ptr == end) {
        grids.emplace(step, entry.path());
      }
    }
  }
  return grids;
}

using Metrics = std::map<std::string, Metric>;

/// The metric as it is, faint, and its running mean.
void add_with_mean(const Metrics& metrics, const std::string& key, const std::string& name,
                   io::LineChart& chart) {
  const auto found = metrics.find(key);
  if (found == metrics.end()) {
    return;
  }
  io::Curve curve{.name = name, .x = found->second.steps, .y = found->second.values, .faint = true};
  const auto radius = static_cast<int64_t>(curve.x.size()) / kSmoothingShare;
  io::Curve mean = io::smoothed(curve, radius);
  mean.faint = false;
  if (radius > 0) {
    chart.curves.push_back(std::move(curve));
  }
  chart.curves.push_back(std::move(mean));
}

void add_plain(const Metrics& metrics, const std::string& key, const std::string& name,
               io::LineChart& chart) {
  if (const auto found = metrics.find(key); found != metrics.end()) {
    chart.curves.push_back({.name = name, .x = found->second.steps, .y = found->second.values});
  }
}

/// Names of the form "validation_WEIGHTS", and of their bands "validation_WEIGHTS_tK".
bool is_band(const std::string& key) {
  const size_t at = key.rfind("_t");
  return at != std::string::npos && at + 2 < key.size() &&
         std::all_of(key.begin() + static_cast<std::ptrdiff_t>(at) + 2, key.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<io::LineChart> charts_of(const Metrics& metrics) {
  constexpr std::string_view kValidation = "validation_";
  io::LineChart loss{.title = "Loss", .curves = {}, .log_y = true};
  add_with_mean(metrics, "loss", "training", loss);
  std::map<std::string, io::LineChart> bands;
  for (const auto& [key, metric] : metrics) {
    if (!key.starts_with(kValidation)) {
      continue;
    }
    const std::string name = key.substr(kValidation.size());
    if (!is_band(key)) {
      add_plain(metrics, key, "validation, " + name, loss);
      continue;
    }
    const std::string weights = name.substr(0, name.rfind("_t"));
    io::LineChart& chart = bands[weights];
    chart.title = "Validation by band of t, t0 the cleanest: " + weights;
    chart.log_y = true;
    add_plain(metrics, key, name.substr(name.rfind("_t") + 1), chart);
  }
  std::vector<io::LineChart> charts = {std::move(loss)};
  for (auto& [weights, chart] : bands) {
    charts.push_back(std::move(chart));
  }
  io::LineChart rate{.title = "Learning rate", .curves = {}};
  add_plain(metrics, "lr", "", rate);
  io::LineChart norm{
      .title = "Norm of the gradients, before clipping", .curves = {}, .log_y = true};
  add_with_mean(metrics, "grad_norm", "", norm);
  io::LineChart speed{.title = "Samples a second", .curves = {}};
  add_with_mean(metrics, "samples_per_s", "", speed);
  io::LineChart waits{.title = "Share of the step that waits", .curves = {}};
  add_with_mean(metrics, "data_wait_share", "for data", waits);
  add_with_mean(metrics, "communication_share", "for other ranks", waits);
  io::LineChart memory{.title = "Peak memory so far", .curves = {}, .bytes = true};
  add_plain(metrics, "peak_memory", "", memory);
  io::LineChart scale{.title = "Loss scale", .curves = {}, .log_y = true};
  add_plain(metrics, "loss_scale", "", scale);
  for (io::LineChart* chart : {&rate, &norm, &speed, &waits, &memory, &scale}) {
    if (!chart->curves.empty()) {
      charts.push_back(std::move(*chart));
    }
  }
  for (io::LineChart& chart : charts) {
    chart.x_title = "optimizer step";
  }
  return charts;
}

class Table {
 public:
  /// kind: of the style, such as "fault".
  void row(const std::string& name, const std::string& value, const std::string& kind = "") {
    text_ += "<tr><td>" + io::escaped(name) + "</td><td class='" + kind + "'>" +
             io::escaped(printable(value)) + "</td></tr>";
  }
  void row_if_known(const std::string& name, const std::string& value) {
    if (!value.empty()) {
      row(name, value);
    }
  }
  [[nodiscard]] std::string text() const { return "<table>" + text_ + "</table>"; }

 private:
  std::string text_;
};

/// Why a run died, or what stopped it that was no wish; empty: nothing did.
std::string why_ended(const RunSummary& summary) {
  if (!summary.error.empty() || summary.state != RunState::kDied) {
    return summary.error;
  }
  return "its process ended without a word: it was killed, for want of memory perhaps, or the "
         "machine stopped";
}

std::string summary_table(const RunSummary& summary, const Metrics& metrics) {
  Table table;
  table.row("state", std::string(to_string(summary.state)));
  if (const std::string why = why_ended(summary); !why.empty()) {
    table.row("why it ended", why, "fault");
  }
  table.row("steps", std::to_string(summary.step) +
                         (summary.steps > 0 ? " of " + std::to_string(summary.steps) : ""));
  if (std::isfinite(summary.seconds_left)) {
    table.row("left", human_duration(summary.seconds_left));
  }
  if (std::isfinite(summary.loss)) {
    table.row("last loss", human_number(summary.loss, kDigits));
  }
  for (const auto& [key, metric] : metrics) {
    if (key.starts_with("validation_") && !is_band(key) && !metric.values.empty()) {
      const auto best = std::min_element(metric.values.begin(), metric.values.end());
      const double step = metric.steps[static_cast<size_t>(best - metric.values.begin())];
      table.row("best " + key,
                human_number(*best, kDigits) + " at step " + std::to_string(std::llround(step)));
    }
  }
  if (std::isfinite(summary.samples_per_s)) {
    table.row("recent samples/s", human_rate(summary.samples_per_s));
  }
  if (const auto seconds = metrics.find("step_s"); seconds != metrics.end()) {
    const std::vector<double>& values = seconds->second.values;
    table.row("training time", human_duration(std::accumulate(values.begin(), values.end(), 0.0)));
  }
  if (const auto memory = metrics.find("peak_memory"); memory != metrics.end()) {
    table.row("peak memory", human_bytes(std::llround(memory->second.values.back())));
  }
  table.row_if_known("started", summary.started);
  table.row_if_known("ended", summary.ended);
  table.row_if_known("machine", summary.host);
  table.row_if_known("device", summary.device);
  table.row_if_known("commit of Kinora", summary.commit);
  return table.text();
}

/// Every n-th entry so that at most kShownSamples are left, the last among them.
std::vector<std::pair<int64_t, fs::path>> chosen(const std::map<int64_t, fs::path>& grids) {
  std::vector<std::pair<int64_t, fs::path>> all(grids.begin(), grids.end());
  if (all.size() <= kShownSamples) {
    return all;
  }
  std::vector<std::pair<int64_t, fs::path>> some;
  for (size_t i = 0; i < kShownSamples; ++i) {
    some.push_back(all[i * (all.size() - 1) / (kShownSamples - 1)]);
  }
  return some;
}

/// What a grid shows: its classes take turns.
std::string labels_of(const RunConfig& config) {
  if (config.model.takes_text()) {
    return "captions of the data, in turn";
  }
  const int64_t count = config.sample.count;
  const int64_t num_classes = config.model.num_classes;
  if (num_classes < 1) {
    return "";
  }
  std::string text = num_classes == 1
                         ? "class 0"
                         : "classes 0 to " + std::to_string(std::min(count, num_classes) - 1);
  return text + ", row by row" +
         (num_classes > 1 && count > num_classes ? ", again and again" : "");
}

void add_samples(const fs::path& folder, const std::string& labels, std::ostringstream& page) {
  const auto grids = sample_grids(folder);
  if (grids.empty()) {
    return;
  }
  page << "<h2>Samples</h2><div class='samples'>";
  for (const auto& [step, path] : chosen(grids)) {
    page << "<figure>";
    std::string prompts;
    try {
      const std::string content = picture(path);
      page << "<img alt='samples of step " << step << "' src='" << content << "'>";
      prompts = prompt_list(prompts_of_grid(path), step == grids.rbegin()->first);
    } catch (const Error& error) {
      page << "<p class='fault'>" << io::escaped(printable(error.what())) << "</p>";
    }
    page << "<figcaption>step " << step << (labels.empty() ? "" : ": " + labels) << prompts
         << "</figcaption></figure>";
  }
  page << "</div>";
}

/// The configuration, folded; above it what differs from the defaults, where it can be read.
void add_configuration(const std::string& text, const std::optional<RunConfig>& config,
                       std::ostringstream& page) {
  page << "<h2>Configuration</h2>";
  if (config) {
    const auto values = flatten_config(*config);
    const auto defaults = flatten_config(RunConfig());
    page << "<p>What differs from the defaults:</p><pre>";
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != defaults[i]) {
        page << io::escaped(values[i].first + ": " + values[i].second) << '\n';
      }
    }
    page << "</pre>";
  }
  page << "<details><summary>All of it</summary><pre>" << io::escaped(text) << "</pre></details>";
}

std::optional<RunConfig> config_of(const std::string& text, const fs::path& file) {
  try {
    auto config = parse_config<RunConfig>({.text = text, .origin = file.string()});
    (void)config.model.takes_text();  // of a model that this version knows
    return config;
  } catch (const Error&) {
    return std::nullopt;  // of another version, say; it is shown as it is
  }
}

}  // namespace

Metrics read_metrics(const fs::path& log) {
  std::ifstream file(log);
  KINORA_CHECK(file.good(), kIo, "[runs] cannot read ", log);
  Metrics metrics;
  for (std::string text; std::getline(file, text);) {
    const nlohmann::json line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number()) {
      continue;
    }
    const double step = line["step"].get<double>();
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step") {
        Metric& metric = metrics[key];
        metric.steps.push_back(step);
        metric.values.push_back(value.get<double>());
      }
    }
  }
  return metrics;
}

std::string report_page(const fs::path& folder) {
  const RunDirectory run(folder);
  const RunSummary summary = summarise(folder);
  std::error_code ignored;
  const Metrics metrics =
      fs::exists(run.log_file(), ignored) ? read_metrics(run.log_file()) : Metrics();
  const std::string name = fs::absolute(folder).lexically_normal().filename().string();
  std::ostringstream page;
  page << "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
       << "<meta name='viewport' content='width=device-width, initial-scale=1'><title>"
       << io::escaped(name) << "</title><style>" << kStyle << "</style></head><body><h1>"
       << io::escaped(folder.string()) << "</h1>" << summary_table(summary, metrics)
       << "<h2>Curves</h2><div class='charts'>";
  for (const io::LineChart& chart : charts_of(metrics)) {
    page << "<div>" << io::svg(chart) << "</div>";
  }
  page << "</div>";
  const std::string text = io::read_text(run.config_file(), kMaxFileBytes);
  const std::optional<RunConfig> config = config_of(text, run.config_file());
  add_samples(run.samples(), config ? labels_of(*config) : "", page);
  page << "<h2>Checkpoints</h2><p>";
  const auto checkpoints = checkpoint::list_checkpoints(run.checkpoints());
  for (const fs::path& checkpoint : checkpoints) {
    page << io::escaped(checkpoint.filename().string()) << ' ';
  }
  page << (checkpoints.empty() ? "none" : "") << "</p>";
  add_configuration(text, config, page);
  page << "</body></html>\n";
  return page.str();
}

}  // namespace kinora::train
