#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Curves as pictures for web pages: SVG, drawn without any script.
namespace kinora::io {

struct Curve {
  std::string name;       ///< any text; "" leaves it out of the legend
  std::vector<double> x;  ///< ascending
  std::vector<double> y;  ///< as many; values that are not finite are left out
  bool faint = false;     ///< behind the others, in the colour of the next curve
};

struct LineChart {
  std::string title;
  std::string x_title = {};  ///< what x counts; "" leaves it out
  std::vector<Curve> curves;
  /// A logarithmic axis where all values are above 0.
  bool log_y = false;
  bool bytes = false;  ///< values are bytes, and the axis says so
};

/// An <svg> element. Long curves are thinned to what can be seen: the mean of each column of
/// pixels. Text is escaped. Error (kShape): a curve whose x and y differ in number.
[[nodiscard]] std::string svg(const LineChart& chart);

/// The curve with each value replaced by the mean of those up to `radius` places away.
[[nodiscard]] Curve smoothed(const Curve& curve, int64_t radius);

/// `text` for HTML and SVG: & < > " ' as entities.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace kinora::io
