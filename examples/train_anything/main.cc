// A torch::nn::Module of one's own, trained by the Booster on as many ranks as are started.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

#include "kinora/comm/group.h"
#include "kinora/train/boost/booster.h"
#include "kinora/train/setup.h"

int main() {
  const auto rank = kinora::comm::world_from_environment();
  const auto device = kinora::train::rank_device(rank);
  const auto world = kinora::comm::connect(rank, device);
  at::manual_seed(static_cast<uint64_t>(world.rank()));  // every rank draws its own samples
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::GELU(),
                              torch::nn::Linear(64, 1));

  const kinora::train::Booster booster({.plugin = "zero2", .grad_clip = 1.0}, world);
  auto boosted = booster.boost(*model, {.weight_decay = 0.01}, {.value = 2e-2});
  for (int step = 0; step < 300; ++step) {
    const auto x = at::rand({256, 2}, device);
    const auto y = (x.select(1, 0) * 6).sin() * x.select(1, 1);
    const auto prediction = model->forward(x.to(at::kBFloat16)).squeeze(1);
    boosted.backward(at::mse_loss(prediction.to(at::kFloat), y));
    const auto result = boosted.step();
    if (step % 50 == 0 && world.rank() == 0) {
      std::cout << "step " << step << " loss " << result.loss << '\n';
    }
  }
  boosted.save_model("train_anything.safetensors");
}
