#include "kinora/io/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::io {
namespace {

// Pixels. The plot has text to its left, above and below.
constexpr double kWidth = 560.0;
constexpr double kHeight = 276.0;  // without further rows of the legend, which follow below
constexpr double kLeft = 64.0;
constexpr double kRight = 12.0;
constexpr double kTop = 46.0;
constexpr double kBottom = 42.0;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr double kLegendRow = 16.0;
constexpr int kColumns = 496;  // points of a curve at most: a pixel each
constexpr double kTicks = 5.0;
constexpr int kDigits = 4;  // of ticks
constexpr double kLegendCharacter = 6.5;
constexpr double kLegendGap = 26.0;

// Okabe and Ito 2008: told apart by colour-blind people too.
constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#444444"};

struct Point {
  double x;
  double y;
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] bool is_empty() const { return low > high; }
  /// Where `value` lies in it, 0 to 1.
  [[nodiscard]] double part(double value) const {
    return high > low ? (value - low) / (high - low) : 0.5;
  }
};

std::vector<Point> points_of(const Curve& curve) {
  KINORA_CHECK(curve.x.size() == curve.y.size(), kShape, "[chart] curve ", curve.name,
               " must have ", curve.x.size(), " values, one for each x, got ", curve.y.size());
  std::vector<Point> points;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (std::isfinite(curve.x[i]) && std::isfinite(curve.y[i])) {
      points.push_back({curve.x[i], curve.y[i]});
    }
  }
  return points;
}

/// The mean of what falls into each column.
std::vector<Point> thinned(const std::vector<Point>& points, const Range& x) {
  if (points.size() <= static_cast<size_t>(kColumns)) {
    return points;
  }
  std::vector<Point> means;
  int column = -1;
  double count = 0.0;
  for (const Point& point : points) {
    const int at = static_cast<int>(x.part(point.x) * (kColumns - 1));
    if (at != column) {
      column = at;
      count = 0.0;
      means.push_back({0.0, 0.0});
    }
    count += 1.0;
    means.back().x += (point.x - means.back().x) / count;
    means.back().y += (point.y - means.back().y) / count;
  }
  return means;
}

/// 1, 2 or 5 times a power of 10, so that about kTicks of them make `length`.
double tick_distance(double length) {
  const double rough = length / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digits = rough / power;
  return power * (digits < 1.5 ? 1.0 : digits < 3.5 ? 2.0 : digits < 7.5 ? 5.0 : 10.0);
}

/// At least `least` apart.
std::vector<double> linear_ticks(const Range& range, double least = 0.0) {
  std::vector<double> ticks;
  const double distance = std::max(tick_distance(range.high - range.low), least);
  constexpr double kRounding = 1e-9;  // of ends that are ticks themselves
  const auto first = static_cast<int64_t>(std::ceil(range.low / distance - kRounding));
  const auto last = static_cast<int64_t>(std::floor(range.high / distance + kRounding));
  for (int64_t i = first; i <= last; ++i) {
    ticks.push_back(static_cast<double>(i) * distance);
  }
  return ticks;
}

/// Of a range of logarithms to base 10: where 1, 2, 5 times powers of 10 lie, or where these are
/// too few, values that are evenly spaced themselves.
std::vector<double> log_ticks(const Range& range) {
  constexpr size_t kFewestTicks = 3;
  std::vector<double> ticks;
  const bool is_wide = range.high - range.low > 3.0;
  for (double power = std::floor(range.low); power <= range.high; power += 1.0) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double tick = power + std::log10(digit);
      if (tick >= range.low && tick <= range.high && (digit == 1.0 || !is_wide)) {
        ticks.push_back(tick);
      }
    }
  }
  if (ticks.size() < kFewestTicks) {
    ticks = linear_ticks({.low = std::pow(10.0, range.low), .high = std::pow(10.0, range.high)});
    std::transform(ticks.begin(), ticks.end(), ticks.begin(),
                   [](double value) { return std::log10(value); });
  }
  return ticks;
}

std::string pixels(double value) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << value;
  return text.str();
}

/// What values are shown in.
struct Unit {
  double size = 1.0;
  std::string name;
};

/// The binary unit in which the largest value has one to four digits.
Unit unit_of_bytes(const std::vector<std::vector<Point>>& curves) {
  constexpr double kStep = 1024.0;
  double most = 0.0;
  for (const std::vector<Point>& points : curves) {
    for (const Point& point : points) {
      most = std::max(most, std::abs(point.y));
    }
  }
  Unit unit;
  for (const char* larger : {" KiB", " MiB", " GiB", " TiB"}) {
    if (most / unit.size >= kStep) {
      unit = {.size = unit.size * kStep, .name = larger};
    }
  }
  return unit;
}

/// A range of a point reaches `margin` to both sides.
Range with_length(const Range& range, double margin) {
  return range.high > range.low ? range
                                : Range{.low = range.low - margin, .high = range.high + margin};
}

class Drawing {
 public:
  /// unit: of the values, "" for none.
  Drawing(Range x, Range y, bool is_log, std::string unit)
      : x_(x), y_(y), is_log_(is_log), unit_(std::move(unit)) {}

  [[nodiscard]] std::string text() const { return text_.str(); }

  void axes(const std::string& x_title) {
    for (const double tick : is_log_ ? log_ticks(y_) : linear_ticks(y_)) {
      const double value = is_log_ ? std::pow(10.0, tick) : tick;
      const std::string at = pixels(y_at(tick));
      text_ << "<line class='grid' x1='" << pixels(kLeft) << "' x2='" << pixels(kWidth - kRight)
            << "' y1='" << at << "' y2='" << at << "'/><text class='tick' x='"
            << pixels(kLeft - 6.0) << "' y='" << at << "' text-anchor='end' dy='.35em'>"
            << human_number(value, kDigits) << unit_ << "</text>";
    }
    for (const double tick : linear_ticks(x_, /*least=*/1.0)) {
      text_ << "<text class='tick' x='" << pixels(x_at(tick)) << "' y='" << pixels(kHeight - 24.0)
            << "' text-anchor='middle'>" << human_count(std::llround(tick)) << "</text>";
    }
    text_ << "<text class='tick' x='" << pixels(kLeft + kPlotWidth / 2.0) << "' y='"
          << pixels(kHeight - 6.0) << "' text-anchor='middle'>" << escaped(x_title) << "</text>";
  }

  void curve(const std::vector<Point>& points, const char* colour, bool faint) {
    if (points.empty()) {
      return;
    }
    if (points.size() == 1) {
      text_ << "<circle cx='" << pixels(x_at(points[0].x)) << "' cy='" << pixels(y_at(points[0].y))
            << "' r='2.5' fill='" << colour << "'/>";
      return;
    }
    text_ << "<polyline fill='none' stroke='" << colour << "' stroke-width='"
          << (faint ? "1' stroke-opacity='0.3" : "1.6") << "' points='";
    for (const Point& point : points) {
      text_ << pixels(x_at(point.x)) << ',' << pixels(y_at(point.y)) << ' ';
    }
    text_ << "'/>";
  }

  /// Above the plot; what has no room there follows in rows below it.
  void legend(const std::string& name, const char* colour) {
    const double width = kLegendGap + kLegendCharacter * static_cast<double>(name.size());
    if (legend_ > kLeft && legend_ + width > kWidth) {
      legend_ = kLeft;
      height_ += kLegendRow;
      legend_y_ = height_ - 10.0;
    }
    text_ << "<line x1='" << pixels(legend_) << "' x2='" << pixels(legend_ + 14.0) << "' y1='"
          << pixels(legend_y_) << "' y2='" << pixels(legend_y_) << "' stroke='" << colour
          << "' stroke-width='2'/><text class='tick' x='" << pixels(legend_ + 18.0) << "' y='"
          << pixels(legend_y_ + 4.0) << "'>" << escaped(name) << "</text>";
    legend_ += width;
  }

  [[nodiscard]] double height() const { return height_; }

 private:
  [[nodiscard]] double x_at(double x) const { return kLeft + kPlotWidth * x_.part(x); }
  [[nodiscard]] double y_at(double y) const {
    return kTop + kPlotHeight * (1.0 - std::clamp(y_.part(y), 0.0, 1.0));
  }

  Range x_;
  Range y_;
  bool is_log_;
  std::string unit_;
  double legend_ = kLeft;  // where the next name begins
  double legend_y_ = 34.0;
  double height_ = kHeight;
  std::ostringstream text_;
};

}  // namespace

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

Curve smoothed(const Curve& curve, int64_t radius) {
  Curve result{.name = curve.name, .x = {}, .y = {}, .faint = curve.faint};
  const std::vector<Point> points = points_of(curve);
  const auto size = static_cast<int64_t>(points.size());
  std::vector<double> sums = {0.0};
  for (const Point& point : points) {
    sums.push_back(sums.back() + point.y);
  }
  for (int64_t i = 0; i < size; ++i) {
    const int64_t reach = std::min({radius, i, size - 1 - i});  // symmetric, so not shifted
    const double sum =
        sums[static_cast<size_t>(i + reach + 1)] - sums[static_cast<size_t>(i - reach)];
    result.x.push_back(points[static_cast<size_t>(i)].x);
    result.y.push_back(sum / static_cast<double>(2 * reach + 1));
  }
  return result;
}

std::string svg(const LineChart& chart) {
  std::vector<std::vector<Point>> curves;
  Range x;
  bool is_log = chart.log_y;
  for (const Curve& curve : chart.curves) {
    curves.push_back(points_of(curve));
    for (const Point& point : curves.back()) {
      x.add(point.x);
      is_log = is_log && point.y > 0.0;
    }
  }
  const Unit unit = chart.bytes ? unit_of_bytes(curves) : Unit();
  Range y;
  for (std::vector<Point>& points : curves) {
    points = thinned(points, x);
    for (Point& point : points) {
      point.y = is_log ? std::log10(point.y / unit.size) : point.y / unit.size;
      y.add(point.y);
    }
  }
  std::string plot;
  double height = kHeight;
  if (!x.is_empty()) {
    x = with_length(x, 1.0);
    y = with_length(y, y.high == 0.0 ? 1.0 : 0.1 * std::abs(y.high));
    Drawing drawing(x, y, is_log, unit.name);
    drawing.axes(chart.x_title);
    size_t colour = 0;
    for (const bool faint : {true, false}) {  // the faint ones first, behind the others
      colour = 0;
      for (size_t i = 0; i < curves.size(); ++i) {
        if (chart.curves[i].faint == faint) {
          drawing.curve(curves[i], kColours[colour % kColours.size()], faint);
        }
        colour += chart.curves[i].faint ? 0 : 1;
      }
    }
    colour = 0;
    for (const Curve& curve : chart.curves) {
      if (!curve.faint && !curve.name.empty()) {
        drawing.legend(curve.name, kColours[colour % kColours.size()]);
      }
      colour += curve.faint ? 0 : 1;
    }
    plot = drawing.text();
    height = drawing.height();
  }
  std::ostringstream text;
  text << "<svg viewBox='0 0 " << kWidth << ' ' << height
       << "' xmlns='http://www.w3.org/2000/svg' role='img'><text class='title' x='" << kLeft
       << "' y='18'>" << escaped(chart.title) << "</text>" << plot << "</svg>";
  return text.str();
}

}  // namespace kinora::io
