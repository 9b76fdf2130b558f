#pragma once

#include <string>
#include <vector>

#include "apps/kinora/options/sample.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/sample_folder.h"

/// Clips from words by way of pictures: another model draws the first frame of each
/// (--image-model).
namespace kinora::apps {

/// Pictures that clips begin with.
struct FirstFrames {
  std::vector<std::string> files;  ///< of each clip; empty: there are none
  std::string origin;              ///< in the drawing's key, instead of the files
};

/// How they are drawn: from the same captions and seed, of as many pixels as that model draws, in
/// the shape of the clips. clips: the model of `arguments`, of the size that is drawn. kConfig
/// where it takes no first frame, or draws from other than captions; errors of
/// inference::read_recipe for the model of pictures.
[[nodiscard]] SampleArguments first_frame_arguments(const SampleArguments& arguments,
                                                    const inference::ModelRecipe& clips);

/// What decided pictures, whatever their number and what they were to show.
[[nodiscard]] std::string origin_of(inference::DrawingKey key);

}  // namespace kinora::apps
