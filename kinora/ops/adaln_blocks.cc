#include "kinora/ops/adaln_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kinora/core/error.h"

// Shapes: B batch, N tokens, R = B N rows, C width, L blocks.

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Vectors of a block's modulation, in the order of the linear's output.
enum Vector : int64_t {
  kShiftAttention,
  kScaleAttention,
  kGateAttention,
  kShiftMlp,
  kScaleMlp,
  kGateMlp,
  kVectors
};

/// What a block keeps; undefined where it is computed again. Rows [R, ...].
struct Kept {
  at::Tensor x_in;   ///< the residual stream before the block
  at::Tensor x_mid;  ///< and between its branches
  NormStatistics norm_attention;
  NormStatistics norm_mlp;
  Operand h_attention;
  at::Tensor qkv;  ///< [B, N, 3 C]
  AttentionResult attention;
  Operand attended;  ///< attention.out, [R, C]
  at::Tensor projected;
  Operand h_mlp;
  BlockKernels::Gelu hidden;
  at::Tensor mlp;
};

/// The modulation linears of one bucket, and the columns of theirs among all vectors.
struct SlabGroup {
  size_t first = 0;  ///< in BlockStack::modulation
  size_t end = 0;
  int64_t column = 0;
  int64_t end_column = 0;
};

std::vector<SlabGroup> slab_groups(const BlockStack& stack) {
  std::vector<SlabGroup> groups;
  const std::vector<int64_t>& buckets = stack.modulation_buckets;
  for (size_t i = 0; i < stack.modulation.size(); ++i) {
    if (i == 0 || buckets.empty() || buckets[i] != buckets[i - 1]) {
      const int64_t column = groups.empty() ? 0 : groups.back().end_column;
      groups.push_back({.first = i, .end = i, .column = column, .end_column = column});
    }
    groups.back().end = i + 1;
    groups.back().end_column += stack.modulation[i].weight.size(0);
  }
  return groups;
}

/// One pass through a stack: the sizes, the modulation and what is kept.
struct Pass : torch::CustomClassHolder {
  Pass(BlockKernels& kernels, BlockStack given, bool keeps)
      : kernels(kernels), stack(std::move(given)), keeps(keeps), groups(slab_groups(stack)) {}

  BlockKernels& kernels;
  const BlockStack stack;
  const bool keeps;  ///< what backward needs
  const std::vector<SlabGroup> groups;
  size_t modulated = 0;  ///< groups whose vectors are there
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t width = 0;
  at::Tensor silu_c;      ///< [B, C] in the compute type
  at::Tensor modulation;  ///< fp32 [B, (6 L + 2) C]; the last two are the final norm's
  std::vector<Kept> kept;
  at::Tensor x_out;
  NormStatistics norm_final;

  [[nodiscard]] int64_t depth() const { return static_cast<int64_t>(stack.blocks.size()); }

  [[nodiscard]] at::Tensor vector(const at::Tensor& all, int64_t block, int64_t which) const {
    return all.narrow(1, (block * kVectors + which) * width, width);
  }
  /// The seam before block `block`'s attention (block = L: before the final norm). Its gate is that
  /// of the MLP branch before it.
  [[nodiscard]] SeamVectors seam_before(const at::Tensor& all, int64_t block) const {
    return {block > 0 ? vector(all, block - 1, kGateMlp) : at::Tensor(),
            vector(all, block, kScaleAttention), vector(all, block, kShiftAttention)};
  }
  /// The seam between block `block`'s branches.
  [[nodiscard]] SeamVectors seam_within(const at::Tensor& all, int64_t block) const {
    return {vector(all, block, kGateAttention), vector(all, block, kScaleMlp),
            vector(all, block, kShiftMlp)};
  }
  /// The number by which fp8 knows a linear: none where nothing is kept, since its scales and
  /// quantised weights are those of training.
  [[nodiscard]] int64_t number(const LinearWeights& linear) const {
    return keeps ? linear.number : -1;
  }
  [[nodiscard]] Recompute recompute_of(int64_t block) const {
    return block < stack.recomputed_blocks ? Recompute::kBlock : stack.recompute;
  }
};

void call_hook(const BlockStack& stack, BucketMoment moment, int64_t block) {
  if (stack.hook) {
    stack.hook(moment, stack.block_buckets[block]);
  }
}

void call_hook(const BlockStack& stack, BucketMoment moment, const SlabGroup& group) {
  if (stack.hook) {
    stack.hook(moment, stack.modulation_buckets[group.first]);
  }
}

/// Fills the group's columns of `vectors`; `silu_c` is SiLU(c) in the compute type.
void modulate(BlockKernels& kernels, const BlockStack& stack, const SlabGroup& group,
              const at::Tensor& silu_c, const at::Tensor& vectors) {
  call_hook(stack, BucketMoment::kBeforeForward, group);
  int64_t column = group.column;
  for (size_t i = group.first; i < group.end; ++i) {
    const LinearWeights& slab = stack.modulation[i];
    const int64_t count = slab.weight.size(0);
    kernels.linear_into(silu_c, slab, vectors.narrow(1, column, count));
    column += count;
  }
  call_hook(stack, BucketMoment::kAfterForward, group);
}

/// Room for the vectors of all seams, of which those of the final norm are there.
at::Tensor vectors_with(const std::vector<SlabGroup>& groups, const at::Tensor& final_modulation) {
  const int64_t columns = groups.back().end_column;
  const int64_t last = final_modulation.size(1);
  at::Tensor vectors =
      at::empty({final_modulation.size(0), columns + last}, final_modulation.options());
  vectors.narrow(1, columns, last).copy_(final_modulation);
  return vectors;
}

at::Tensor typed_silu(const BlockStack& stack, const at::Tensor& c) {
  return at::silu(c).to(stack.blocks[0].qkv.weight.scalar_type());
}

/// Makes the vectors of the blocks up to `block`, each group when the first of its blocks needs it:
/// its weights may still be on their way while blocks before it compute.
void modulate_up_to(Pass& pass, int64_t block) {
  while (pass.modulated < pass.groups.size() &&
         pass.groups[pass.modulated].column < (block + 1) * kVectors * pass.width) {
    modulate(pass.kernels, pass.stack, pass.groups[pass.modulated++], pass.silu_c, pass.modulation);
  }
}

/// The branches of a block between its seams. Fills kept's tensors from h_attention on.
void attention_branch(Pass& pass, const BlockWeights& weights, Kept& kept) {
  kept.qkv = pass.kernels.linear(kept.h_attention, weights.qkv)
                 .view({pass.batch, pass.tokens, 3 * pass.width});
  kept.attention = pass.kernels.attention(kept.qkv, pass.stack.heads, pass.keeps);
  kept.attended = pass.kernels.operand(kept.attention.out.view({-1, pass.width}),
                                       pass.number(weights.proj), false);
  kept.projected = pass.kernels.linear(kept.attended, weights.proj);
}

void seam_within(Pass& pass, int64_t block, Kept& kept) {
  SeamForward seam = pass.kernels.seam(
      kept.x_in, kept.projected, pass.seam_within(pass.modulation, block), kept.x_in.scalar_type(),
      pass.keeps, pass.number(pass.stack.blocks[block].fc1));
  kept.x_mid = std::move(seam.x);
  kept.h_mlp = std::move(seam.h);
  kept.norm_mlp = std::move(seam.statistics);
}

void mlp_branch(Pass& pass, const BlockWeights& weights, Kept& kept) {
  kept.hidden =
      pass.kernels.linear_gelu(kept.h_mlp, weights.fc1, pass.number(weights.fc2), pass.keeps);
  kept.mlp = pass.kernels.linear(kept.hidden.out, weights.fc2);
}

/// Drops what the block's level computes again.
void forget(Recompute level, Kept& kept) {
  if (level == Recompute::kBlock) {
    // mlp belongs to the seam behind the block, whose backward comes first.
    Kept rest;
    rest.x_in = kept.x_in;
    rest.norm_attention = kept.norm_attention;
    rest.mlp = kept.mlp;
    kept = rest;
    return;
  }
  if (level != Recompute::kNone) {
    kept.h_attention = {};
    kept.h_mlp = {};
    kept.hidden.out = {};
  }
  // Weight gradients read the transposed copies only.
  for (Operand* operand : {&kept.h_attention, &kept.attended, &kept.h_mlp, &kept.hidden.out}) {
    operand->fp8 = at::Tensor();
  }
  if (level == Recompute::kMlp) {
    kept.hidden.pre = at::Tensor();
  }
}

at::Tensor run_forward(Pass& pass, const at::Tensor& x) {
  modulate_up_to(pass, 0);
  SeamForward seam =
      pass.kernels.seam(x.reshape({-1, pass.width}), {}, pass.seam_before(pass.modulation, 0),
                        x.scalar_type(), pass.keeps, pass.number(pass.stack.blocks[0].qkv));
  for (int64_t i = 0; i < pass.depth(); ++i) {
    const BlockWeights& weights = pass.stack.blocks[i];
    call_hook(pass.stack, BucketMoment::kBeforeForward, i);
    Kept kept;
    kept.x_in = std::move(seam.x);
    kept.h_attention = std::move(seam.h);
    kept.norm_attention = std::move(seam.statistics);
    attention_branch(pass, weights, kept);
    seam_within(pass, i, kept);
    mlp_branch(pass, weights, kept);
    call_hook(pass.stack, BucketMoment::kAfterForward, i);
    const bool last = i + 1 == pass.depth();
    if (!last) {
      modulate_up_to(pass, i + 1);
    }
    seam = pass.kernels.seam(kept.x_mid, kept.mlp, pass.seam_before(pass.modulation, i + 1),
                             last ? at::kFloat : x.scalar_type(), pass.keeps,
                             last ? -1 : pass.number(pass.stack.blocks[i + 1].qkv));
    if (pass.keeps) {
      forget(pass.recompute_of(i), kept);
      pass.kept.push_back(std::move(kept));
    }
  }
  if (pass.keeps) {
    pass.x_out = std::move(seam.x);
    pass.norm_final = std::move(seam.statistics);
  }
  return seam.h.value.view({pass.batch, pass.tokens, pass.width});
}

/// Computes again what forget() dropped.
void remember(Pass& pass, int64_t block, Kept& kept) {
  const Recompute level = pass.recompute_of(block);
  const BlockWeights& weights = pass.stack.blocks[block];
  if (level == Recompute::kNone) {
    return;
  }
  kept.h_attention = pass.kernels.modulated_norm(
      kept.x_in, pass.seam_before(pass.modulation, block), pass.number(weights.qkv));
  if (level == Recompute::kBlock) {
    attention_branch(pass, weights, kept);
    seam_within(pass, block, kept);
    kept.hidden = pass.kernels.linear_gelu(kept.h_mlp, weights.fc1, pass.number(weights.fc2), true);
    return;
  }
  kept.h_mlp = pass.kernels.modulated_norm(kept.x_mid, pass.seam_within(pass.modulation, block),
                                           pass.number(weights.fc1));
  if (level == Recompute::kMlp) {
    kept.hidden = pass.kernels.linear_gelu(kept.h_mlp, weights.fc1, pass.number(weights.fc2), true);
  } else {
    kept.hidden.out = pass.kernels.gelu(kept.hidden.pre, pass.number(weights.fc2));
  }
}

struct StackGradients {
  at::Tensor x;                 ///< [B, N, C]
  at::Tensor c;                 ///< fp32 [B, C]
  at::Tensor final_modulation;  ///< fp32 [B, 2 C]
};

/// What blocks add to the gradient of the modulation's input, as their gradients become complete.
class ModulationBackward {
 public:
  /// `grads`: of the vectors of all seams. dsilu: fp32 [B, C], added to.
  ModulationBackward(Pass& pass, const at::Tensor& grads, const at::Tensor& dsilu)
      : pass_(pass), grads_(grads), dsilu_(dsilu), pending_(pass.groups.size()) {}

  /// The gradients of `block`'s vectors, and of all blocks behind it, are complete.
  void complete(int64_t block) {
    while (pending_ > 0 && pass_.groups[pending_ - 1].column >= block * kVectors * pass_.width) {
      finish(pass_.groups[--pending_]);
    }
  }

 private:
  void finish(const SlabGroup& group) {
    call_hook(pass_.stack, BucketMoment::kBeforeBackward, group);
    const at::Tensor typed = grads_.narrow(1, group.column, group.end_column - group.column)
                                 .to(pass_.silu_c.scalar_type());
    int64_t column = group.column;
    for (size_t i = group.first; i < group.end; ++i) {
      const LinearWeights& slab = pass_.stack.modulation[i];
      const int64_t count = slab.weight.size(0);
      const at::Tensor dy = typed.narrow(1, column - group.column, count);
      pass_.kernels.weight_grad({.value = dy}, {.value = pass_.silu_c}, slab,
                                pass_.stack.overwrites_gradients);
      pass_.kernels.add_column_sums(grads_.narrow(1, column, count), slab.bias_grad);
      pass_.kernels.add_input_grad(dy, slab.weight, dsilu_);
      column += count;
    }
    call_hook(pass_.stack, BucketMoment::kAfterBackward, group);
  }

  Pass& pass_;
  at::Tensor grads_;
  at::Tensor dsilu_;
  size_t pending_;
};

StackGradients run_backward(Pass& pass, const at::Tensor& c, const at::Tensor& incoming) {
  BlockKernels& kernels = pass.kernels;
  const bool overwrite = pass.stack.overwrites_gradients;
  const at::Tensor grads = at::empty_like(pass.modulation);
  const at::Tensor dsilu = at::zeros(c.sizes(), c.options());
  ModulationBackward modulation(pass, grads, dsilu);
  at::Tensor dh = incoming.reshape({-1, pass.width});
  at::Tensor dx;  // of the residual stream
  at::Tensor x = std::move(pass.x_out);
  NormStatistics statistics = std::move(pass.norm_final);
  for (int64_t i = pass.depth() - 1; i >= 0; --i) {
    const BlockWeights& weights = pass.stack.blocks[i];
    call_hook(pass.stack, BucketMoment::kBeforeBackward, i);
    Kept kept = std::move(pass.kept[i]);
    pass.kept[i] = {};
    // The seam behind the block.
    SeamBackward seam = kernels.seam_backward(dh, dx, x, statistics, kept.mlp,
                                              pass.seam_before(pass.modulation, i + 1),
                                              pass.seam_before(grads, i + 1), &weights.fc2);
    modulation.complete(i + 1);
    x = at::Tensor();
    kept.mlp = at::Tensor();
    remember(pass, i, kept);
    kernels.weight_grad(seam.dbranch, kept.hidden.out, weights.fc2, overwrite);
    kept.hidden.out = {};
    Operand dhidden =
        kernels.gelu_input_grad(seam.dbranch, weights.fc2, kept.hidden.pre, weights.fc1);
    kept.hidden.pre = at::Tensor();
    kernels.weight_grad(dhidden, kept.h_mlp, weights.fc1, overwrite);
    kept.h_mlp = {};
    dh = kernels.input_grad(dhidden, weights.fc1);
    dhidden = {};

    seam = kernels.seam_backward(dh, seam.dx, kept.x_mid, kept.norm_mlp, kept.projected,
                                 pass.seam_within(pass.modulation, i), pass.seam_within(grads, i),
                                 &weights.proj);
    kept.x_mid = at::Tensor();
    kept.projected = at::Tensor();
    kernels.weight_grad(seam.dbranch, kept.attended, weights.proj, overwrite);
    kept.attended = {};
    const at::Tensor dout = kernels.input_grad(seam.dbranch, weights.proj);
    seam.dbranch = {};
    const at::Tensor dqkv =
        kernels
            .attention_backward(dout.view({pass.batch, pass.tokens, pass.width}), kept.qkv,
                                kept.attention, pass.stack.heads)
            .view({-1, 3 * pass.width});
    kept.qkv = at::Tensor();
    kept.attention = {};
    const Operand dprojections = kernels.operand(dqkv, pass.number(weights.qkv), true);
    kernels.weight_and_bias_grad(dprojections, dqkv, kept.h_attention, weights.qkv, overwrite);
    dh = kernels.input_grad(dprojections, weights.qkv);
    call_hook(pass.stack, BucketMoment::kAfterBackward, i);
    dx = seam.dx;
    x = kept.x_in;
    statistics = kept.norm_attention;
  }
  const SeamBackward first =
      kernels.seam_backward(dh, dx, x, statistics, {}, pass.seam_before(pass.modulation, 0),
                            pass.seam_before(grads, 0), nullptr);

  modulation.complete(0);
  const int64_t columns = pass.groups.back().end_column;
  return {first.dx.view({pass.batch, pass.tokens, pass.width}), at::silu_backward(dsilu, c),
          grads.narrow(1, columns, 2 * pass.width)};
}

void check_condition(const BlockStack& stack, const at::Tensor& c,
                     const at::Tensor& final_modulation) {
  const int64_t width = stack.blocks[0].qkv.weight.size(1);
  KINORA_CHECK(c.dim() == 2 && c.size(1) == width && final_modulation.dim() == 2 &&
                   final_modulation.size(0) == c.size(0) && final_modulation.size(1) == 2 * width,
               kShape, "[adaln_blocks] c must be [B, ", width, "], final_modulation [B, ",
               2 * width, "], got ", c.sizes(), " and ", final_modulation.sizes());
}

/// Takes the sizes and vectors of a pass over x.
void start(Pass& pass, const at::Tensor& x, const at::Tensor& vectors) {
  KINORA_CHECK(x.dim() == 3 && vectors.size(0) == x.size(0) &&
                   vectors.size(1) == (pass.depth() * kVectors + 2) * x.size(2),
               kShape, "[adaln_blocks] x must be [B, N, C] and have vectors [B, (6 L + 2) C] with ",
               "L = ", pass.depth(), ", got ", x.sizes(), " and ", vectors.sizes());
  pass.batch = x.size(0);
  pass.tokens = x.size(1);
  pass.width = x.size(2);
  pass.modulation = vectors;
}

struct AdalnBlocks : torch::autograd::Function<AdalnBlocks> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Pass>& pass,
                            const at::Tensor& x, const at::Tensor& c,
                            const at::Tensor& final_modulation) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->save_for_backward({c});
    pass->silu_c = typed_silu(pass->stack, c);
    start(*pass, x, vectors_with(pass->groups, final_modulation));
    return run_forward(*pass, x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto holder = context->saved_data["pass"].toCapsule();
    const StackGradients grads = run_backward(*static_cast<Pass*>(holder.get()),
                                              context->get_saved_variables()[0], incoming[0]);
    return {at::Tensor(), grads.x, grads.c, grads.final_modulation};
  }
};

/// Whether `next` starts in memory where `before` ends; both undefined counts as yes.
bool adjoins(const at::Tensor& before, const at::Tensor& next) {
  if (!before.defined() || !next.defined()) {
    return before.defined() == next.defined();
  }
  return before.is_contiguous() && next.is_contiguous() && before.is_alias_of(next) &&
         next.storage_offset() == before.storage_offset() + before.numel();
}

/// `before` and the rows right behind it.
at::Tensor joined(const at::Tensor& before, const at::Tensor& next) {
  if (!before.defined()) {
    return before;
  }
  std::vector<int64_t> shape = before.sizes().vec();
  shape[0] += next.size(0);
  return before.detach().as_strided(shape, before.strides());
}

}  // namespace

std::vector<LinearWeights> merge_adjacent(const std::vector<LinearWeights>& linears) {
  std::vector<LinearWeights> merged;
  for (const LinearWeights& next : linears) {
    if (!merged.empty()) {
      LinearWeights& before = merged.back();
      if (adjoins(before.weight, next.weight) && adjoins(before.bias, next.bias) &&
          adjoins(before.weight_grad, next.weight_grad) &&
          adjoins(before.bias_grad, next.bias_grad)) {
        before = {joined(before.weight, next.weight), joined(before.bias, next.bias),
                  joined(before.weight_grad, next.weight_grad),
                  joined(before.bias_grad, next.bias_grad), before.number};
        continue;
      }
    }
    merged.push_back(next);
  }
  return merged;
}

void zero_bias_gradients(const BlockStack& stack) {
  std::vector<at::Tensor> gradients;
  for (const BlockWeights& block : stack.blocks) {
    for (const LinearWeights* linear : {&block.qkv, &block.proj, &block.fc1, &block.fc2}) {
      gradients.push_back(linear->bias_grad);
    }
  }
  for (const LinearWeights& slab : stack.modulation) {
    gradients.push_back(slab.bias_grad);
  }
  const at::NoGradGuard no_grad;
  at::_foreach_zero_(gradients);
}

at::Tensor adaln_blocks(BlockKernels& kernels, BlockStack stack, const at::Tensor& x,
                        const at::Tensor& c, const at::Tensor& final_modulation) {
  if (!at::GradMode::is_enabled()) {
    const at::Tensor vectors = seam_vectors(kernels, stack, c, final_modulation);
    return adaln_blocks(kernels, std::move(stack), x, vectors);
  }
  check_condition(stack, c, final_modulation);
  return AdalnBlocks::apply(c10::make_intrusive<Pass>(kernels, std::move(stack), true), x, c,
                            final_modulation);
}

at::Tensor seam_vectors(BlockKernels& kernels, const BlockStack& stack, const at::Tensor& c,
                        const at::Tensor& final_modulation) {
  check_condition(stack, c, final_modulation);
  const std::vector<SlabGroup> groups = slab_groups(stack);
  const at::Tensor silu_c = typed_silu(stack, c);
  at::Tensor vectors = vectors_with(groups, final_modulation);
  for (const SlabGroup& group : groups) {
    modulate(kernels, stack, group, silu_c, vectors);
  }
  return vectors;
}

at::Tensor adaln_blocks(BlockKernels& kernels, BlockStack stack, const at::Tensor& x,
                        const at::Tensor& vectors) {
  Pass pass(kernels, std::move(stack), false);
  pass.modulated = pass.groups.size();
  start(pass, x, vectors);
  return run_forward(pass, x);
}

}  // namespace kinora::ops
