// A program outside of the repository: trains a recipe, draws from it, and writes a picture.
#include "kinora/kinora.h"

int main() {
  auto run = kinora::train_recipe("configs/demo.yaml", {"run.dir=runs/api"});
  auto model = kinora::load(run.folder);
  auto images = kinora::draw(model, {.classes = {0, 5, 10, 15}, .count = 16, .seed = 1});
  kinora::io::write_png("grid.png", kinora::io::make_grid(images));
}
