#include "kinora/eval/sample_judge.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/moving_captions.h"
#include "kinora/data/moving_shapes.h"
#include "kinora/data/scene_captions.h"
#include "kinora/data/shapes.h"
#include "kinora/eval/motion_judge.h"
#include "kinora/eval/scene_judge.h"
#include "kinora/eval/shape_judge.h"

namespace kinora::eval {
namespace {

/// Letters and digits in lower case, words between single spaces, one at each end.
std::string words_of(std::string_view text) {
  std::string words = " ";
  for (const char c : text) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    if (is_upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      words += is_upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (words.back() != ' ') {
      words += ' ';
    }
  }
  if (words.back() != ' ') {
    words += ' ';
  }
  return words;
}

bool names(std::string_view caption, std::string_view words) {
  return words_of(caption).find(words_of(words)) != std::string::npos;
}

/// What the caption of a scene says; kConfig where that cannot be read.
data::SceneContent content_of(const inference::Asked& asked) {
  const std::optional<data::SceneContent> content = data::content_of(asked.caption);
  KINORA_CHECK(content.has_value(), kConfig, "[judge] cannot tell what ", quote(asked.caption),
               " should show. Hint: word it as the scenes' captions, such as ",
               quote(data::scene_caption(0, 1)));
  return *content;
}

/// What the caption of a generated clip says, likewise.
data::MovingContent moving_content_of(const inference::Asked& asked) {
  const std::optional<data::MovingContent> content = data::moving_content_of(asked.caption);
  KINORA_CHECK(content.has_value(), kConfig, "[judge] cannot tell what ", quote(asked.caption),
               " should show. Hint: name a colour, a shape and where it moves, such as ",
               quote(data::moving_caption(0, 0)));
  return *content;
}

}  // namespace

SampleJudge::SampleJudge(const data::DataConfig& data, const models::ModelConfig& model) {
  KINORA_CHECK(model.in_channels == 3, kConfig, "[judge] needs pixels, and samples of ",
               model.in_channels, " channels are latents");
  KINORA_CHECK(data.references == 0, kConfig,
               "[judge] captions do not say what clips with references should show. Hint: kinora "
               "eval RUN --scenes N");
  const bool is_clip = model.is_video() && model.frames > 1;
  data_ = data::open_source(data);
  if (data.source == data::SourceKind::kShapes && !is_clip) {
    kind_ = Kind::kShapes;
  } else if (data.source == data::SourceKind::kMovingShapes && is_clip) {
    kind_ = Kind::kMovingShapes;
  } else if (data.source == data::SourceKind::kScenes && !is_clip) {
    kind_ = data.layout_grid > 0 ? Kind::kLayouts : Kind::kScenes;
  } else {
    KINORA_CHECK(
        data.frame_layout == data::FrameLayout::kStrip && is_clip &&
            data_->num_classes() == static_cast<int64_t>(kStripMotions.size()),
        kConfig,
        "[judge] knows images of data.source shapes and scenes, and clips of moving_shapes "
        "and of strips of the two motions");
    kind_ = Kind::kMotions;
  }
}

int64_t SampleJudge::label_of(const inference::Asked& asked) const {
  if (kind_ == Kind::kLayouts) {
    return std::ssize(data::parse_layout(asked.caption)) - 1;
  }
  if (kind_ == Kind::kScenes) {
    return std::ssize(content_of(asked).objects) - 1;
  }
  if (kind_ == Kind::kMovingShapes) {
    return moving_content_of(asked).label();
  }
  if (asked.label) {
    return *asked.label;
  }
  const std::vector<std::string>& classes = data_->class_names();
  for (size_t label = 0; label < classes.size(); ++label) {
    if (names(asked.caption, classes[label])) {
      return static_cast<int64_t>(label);
    }
  }
  throw_error(ErrorKind::kConfig, "[judge] cannot tell what ", quote(asked.caption),
              " should show: it names none of the data's classes, such as ",
              quote(classes.front()));
}

bool SampleJudge::is_right(const at::Tensor& sample, const inference::Asked& asked) const {
  switch (kind_) {
    case Kind::kShapes: {
      const auto verdict = judge_shape(sample.dim() == 4 ? sample.squeeze(1) : sample);
      return verdict && verdict->label() == label_of(asked);
    }
    case Kind::kMovingShapes:
      return judge_moving_shape(sample) == moving_content_of(asked);
    case Kind::kScenes: {
      const auto found = judge_scene(sample.dim() == 4 ? sample.squeeze(1) : sample);
      return found && shows(*found, content_of(asked));
    }
    case Kind::kLayouts: {
      const data::Layout layout = data::parse_layout(asked.caption);
      const auto found = judge_scene(sample.dim() == 4 ? sample.squeeze(1) : sample);
      return found && found->size() == layout.size() &&
             num_in_boxes(*found, layout) == std::ssize(layout);
    }
    case Kind::kMotions: {
      const auto verdict = judge_motion(sample);
      return verdict && verdict->motion == kStripMotions[static_cast<size_t>(label_of(asked))];
    }
  }
  KINORA_UNREACHABLE("[sample] unknown judge");
}

}  // namespace kinora::eval
