#include "kinora/ops/fused.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/ops/norm_inputs.h"

namespace kinora::ops::fused {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a function needs besides tensors that have gradients, through the context's IValue map.
template <typename Data>
struct Holder : torch::CustomClassHolder {
  Holder(BlockKernels& kernels, Data data) : kernels(kernels), data(std::move(data)) {}
  BlockKernels& kernels;
  const Data data;
};
template <typename Data>
using Held = c10::intrusive_ptr<Holder<Data>>;

template <typename Data>
Held<Data> hold(BlockKernels& kernels, Data data) {
  return c10::make_intrusive<Holder<Data>>(kernels, std::move(data));
}

template <typename Data>
void keep(AutogradContext* context, const Held<Data>& held) {
  context->saved_data["held"] = c10::IValue::make_capsule(held);
}

template <typename Data>
Held<Data> kept(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Holder<Data>>(context->saved_data["held"].toCapsule());
}

/// Functions take what may be undefined so.
std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// [..., C] -> [R, C].
at::Tensor rows_of(const at::Tensor& x) {
  return x.contiguous().view({-1, x.size(-1)});
}

at::Tensor with_last(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(1);
  return rows.view(shape);
}

void add_gradients(BlockKernels& kernels, const at::Tensor& dy, const at::Tensor& x,
                   const LinearWeights& weights) {
  if (weights.weight_grad.defined()) {
    kernels.weight_and_bias_grad({.value = dy}, dy, {.value = x}, weights, /*overwrite=*/false);
  }
}

/// Saves what a linear's input can be had from in backward: what it was made of, which lies there
/// anyway, or itself.
void save_input(BlockKernels& kernels, const at::Tensor& rows, variable_list& saved) {
  if (const NormInput* made_of = kernels.norm_inputs().find(rows)) {
    saved.insert(saved.end(), {made_of->x, made_of->vectors.scale, made_of->vectors.shift});
  } else {
    saved.push_back(rows);
  }
}

/// The reverse; its part of `saved` begins at `first` and ends it.
at::Tensor saved_input(BlockKernels& kernels, const variable_list& saved, size_t first) {
  if (saved.size() == first + 1) {
    return saved[first];
  }
  return kernels.modulated_norm(saved[first], {{}, saved[first + 1], saved[first + 2]}, -1).value;
}

// Weights are arguments so that there is a backward also where x has no gradient; theirs are added
// in place.

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const Held<LinearWeights>& held,
                            const at::Tensor& x, const at::Tensor& /*weight*/) {
    const at::Tensor rows = rows_of(x);
    keep(context, held);
    variable_list saved;
    save_input(held->kernels, rows, saved);
    context->save_for_backward(std::move(saved));
    return with_last(held->kernels.linear({.value = rows}, held->data), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<LinearWeights>(context);
    const at::Tensor dy = rows_of(incoming[0]);
    add_gradients(held->kernels, dy, saved_input(held->kernels, context->get_saved_variables(), 0),
                  held->data);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = with_last(held->kernels.input_grad({.value = dy}, held->data), incoming[0]);
    }
    return {at::Tensor(), dx, at::Tensor()};
  }
};

struct MlpData {
  LinearWeights fc1;
  LinearWeights fc2;
  bool keeps = false;  ///< what backward needs
};

struct Mlp : torch::autograd::Function<Mlp> {
  static at::Tensor forward(AutogradContext* context, const Held<MlpData>& held,
                            const at::Tensor& x, const at::Tensor& /*weight*/) {
    const auto& [fc1, fc2, keeps] = held->data;
    const at::Tensor rows = rows_of(x);
    BlockKernels& kernels = held->kernels;
    const Recompute level = kernels.recompute();
    const BlockKernels::Gelu hidden = kernels.linear_gelu({.value = rows}, fc1, -1, keeps);
    if (keeps) {
      keep(context, held);
      variable_list saved = {level == Recompute::kMlp ? at::Tensor() : hidden.pre,
                             level == Recompute::kNone ? hidden.out.value : at::Tensor()};
      save_input(kernels, rows, saved);
      context->save_for_backward(std::move(saved));
    }
    return with_last(kernels.linear(hidden.out, fc2), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<MlpData>(context);
    BlockKernels& kernels = held->kernels;
    const auto& [fc1, fc2, keeps] = held->data;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = rows_of(incoming[0]);
    const at::Tensor x = saved_input(kernels, saved, 2);
    BlockKernels::Gelu hidden{.pre = saved[0], .out = {.value = saved[1]}};
    if (!hidden.pre.defined()) {
      hidden = kernels.linear_gelu({.value = x}, fc1, -1, /*keep=*/true);
    } else if (!hidden.out.value.defined()) {
      hidden.out = kernels.gelu(hidden.pre, -1);
    }
    add_gradients(kernels, dy, hidden.out.value, fc2);
    hidden.out = {};
    const Operand dhidden = kernels.gelu_input_grad({.value = dy}, fc2, hidden.pre, fc1);
    hidden.pre = at::Tensor();
    kernels.weight_grad(dhidden, {.value = x}, fc1, /*overwrite=*/false);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = with_last(kernels.input_grad(dhidden, fc1), incoming[0]);
    }
    return {at::Tensor(), dx, at::Tensor()};
  }
};

struct SeamData {
  at::ScalarType h_type = at::kFloat;
  bool keeps = false;
};

/// Lets who reads h keep x in its place, where the level of recomputation is so.
void offer_input(BlockKernels& kernels, const SeamForward& out, const SeamVectors& vectors) {
  if (kernels.recompute() == Recompute::kNone) {
    return;
  }
  if (out.h.value.scalar_type() == out.x.scalar_type()) {
    kernels.norm_inputs().add(out.h.value,
                              {out.x, {{}, vectors.scale.detach(), vectors.shift.detach()}});
  } else {
    kernels.norm_inputs().forget_gone();
  }
}

struct Seam : torch::autograd::Function<Seam> {
  static variable_list forward(AutogradContext* context, const Held<SeamData>& held,
                               const at::Tensor& x, const std::optional<at::Tensor>& given_branch,
                               const std::optional<at::Tensor>& given_gate, const at::Tensor& scale,
                               const at::Tensor& shift) {
    const auto& [h_type, keeps] = held->data;
    const at::Tensor branch = given_branch.value_or(at::Tensor());
    const at::Tensor gate = given_gate.value_or(at::Tensor());
    SeamVectors vectors{gate, scale, shift};
    if (branch.defined() && !gate.defined()) {
      vectors.gate = at::ones({1, scale.size(1)}, scale.options()).expand_as(scale);
    }
    const at::Tensor branch_rows = branch.defined() ? rows_of(branch) : branch;
    const SeamForward out = held->kernels.seam(rows_of(x), branch_rows, vectors, h_type, keeps, -1);
    if (keeps) {
      keep(context, held);
      context->set_materialize_grads(false);
      context->save_for_backward({out.x, out.statistics.mean, out.statistics.rstd,
                                  gate.defined() ? branch_rows : at::Tensor(), gate, scale, shift});
      context->saved_data["adds"] = branch.defined();
      offer_input(held->kernels, out, vectors);
    }
    return {out.x.view(x.sizes()), out.h.value.view(x.sizes())};
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<SeamData>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& branch = saved[3];
    const SeamVectors vectors{saved[4], saved[5], saved[6]};
    const at::Tensor dx_out = incoming[0].defined() ? rows_of(incoming[0]) : at::Tensor();
    const at::Tensor dh = incoming[1].defined()
                              ? rows_of(incoming[1])
                              : at::zeros_like(x, x.options().dtype(held->data.h_type));
    const at::Tensor sums =
        at::empty({3, vectors.scale.size(0), vectors.scale.size(1)}, vectors.scale.options());
    const SeamVectors grads{vectors.gate.defined() ? sums[0] : at::Tensor(), sums[1], sums[2]};
    const SeamBackward out = held->kernels.seam_backward(
        dh, dx_out, x, {saved[1], saved[2]}, branch, vectors, grads, nullptr, /*keep_dx_out=*/true);
    const at::IntArrayRef shape = incoming[incoming[0].defined() ? 0 : 1].sizes();
    const at::Tensor dx = out.dx.view(shape);
    at::Tensor dbranch;
    if (branch.defined()) {
      dbranch = out.dbranch.value.view(shape);
    } else if (context->saved_data["adds"].toBool()) {
      dbranch = dx;
    }
    return {at::Tensor(), dx, dbranch, grads.gate, grads.scale, grads.shift};
  }
};

struct Nothing {};

struct GatedAdd : torch::autograd::Function<GatedAdd> {
  static at::Tensor forward(AutogradContext* context, const Held<Nothing>& held,
                            const at::Tensor& x, const at::Tensor& branch, const at::Tensor& gate) {
    const at::Tensor rows = rows_of(branch);
    keep(context, held);
    context->save_for_backward({rows, gate});
    return held->kernels.gated_add(rows_of(x), rows, gate).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<Nothing>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gate = saved[1];
    at::Tensor dgate = at::empty(gate.sizes(), gate.options());
    const at::Tensor dbranch =
        held->kernels.gated_add_backward(rows_of(incoming[0]), saved[0], gate, dgate);
    return {at::Tensor(), incoming[0], dbranch.view(incoming[0].sizes()), dgate};
  }
};

// ---- attention ----

struct SelfAttentionData {
  int64_t heads = 1;
  HeadRule rule;
  bool keeps = false;
};

/// The sequences of [G, N, M, parts, H, D] that one launch can take, the part of each: all where M
/// is 1, else those of group g.
struct Sequences {
  int64_t groups;  ///< launches
  bool is_strided;

  explicit Sequences(const at::Tensor& tokens)
      : groups(tokens.size(2) == 1 ? 1 : tokens.size(0)), is_strided(tokens.size(2) != 1) {}

  /// [B, N, H, D] of heads [G, N, M, H, D].
  [[nodiscard]] at::Tensor heads(const at::Tensor& heads, int64_t group) const {
    return is_strided ? heads.select(0, group).transpose(0, 1) : heads.squeeze(2);
  }
  /// [B, H, N] of the statistics [G, M, H, N].
  [[nodiscard]] at::Tensor statistics(const at::Tensor& lse, int64_t group) const {
    if (!lse.defined()) {
      return lse;
    }
    return is_strided ? lse.select(0, group) : lse.squeeze(1);
  }
};

/// The parts of rows [G, N, M, parts * C] as [G, N, M, parts, H, D].
at::Tensor split(const at::Tensor& packed, int64_t parts, int64_t heads) {
  return packed.unflatten(3, {parts, heads, packed.size(3) / (parts * heads)});
}

struct SelfAttention : torch::autograd::Function<SelfAttention> {
  static at::Tensor forward(AutogradContext* context, const Held<SelfAttentionData>& held,
                            const at::Tensor& packed) {
    const auto& [heads, rule, keeps] = held->data;
    BlockKernels& kernels = held->kernels;
    const at::Tensor qkv = packed.contiguous();
    const int64_t width = qkv.size(3) / 3;
    std::vector<int64_t> shape = qkv.sizes().vec();
    const at::Tensor qk = ready_heads(kernels, held->data, qkv);
    shape[3] = width;
    at::Tensor out = at::empty(shape, qkv.options());
    at::Tensor lse;
    if (keeps) {
      lse = at::empty({shape[0], shape[2], heads, shape[1]}, qkv.options().dtype(at::kFloat));
    }
    bool has_lse = keeps;
    for_each(qk, qkv, heads,
             [&, heads = heads](const Sequences& sequences, const HeadTensors& in, int64_t group) {
               has_lse =
                   kernels.attend(in, sequences.heads(split(out, 1, heads).select(3, 0), group),
                                  sequences.statistics(lse, group)) &&
                   has_lse;
             });
    if (keeps) {
      keep(context, held);
      const bool keeps_qk = !rule.is_empty() && kernels.recompute() == Recompute::kNone;
      context->save_for_backward(
          {qkv, keeps_qk ? qk : at::Tensor(), out, has_lse ? lse : at::Tensor()});
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<SelfAttentionData>(context);
    const auto& [heads, rule, keeps] = held->data;
    BlockKernels& kernels = held->kernels;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& qkv = saved[0];
    const at::Tensor qk = saved[1].defined() ? saved[1] : ready_heads(kernels, held->data, qkv);
    const at::Tensor out = split(saved[2], 1, heads).select(3, 0);
    const at::Tensor dout = split(incoming[0].contiguous(), 1, heads).select(3, 0);
    at::Tensor dqkv = at::empty_like(qkv);
    const at::Tensor grads = split(dqkv, 3, heads);
    for_each(qk, qkv, heads, [&](const Sequences& sequences, const HeadTensors& in, int64_t group) {
      const auto part = [&](int64_t index) {
        return sequences.heads(grads.select(3, index), group);
      };
      kernels.attend_backward(sequences.heads(dout, group), in, sequences.heads(out, group),
                              sequences.statistics(saved[3], group),
                              {part(0), part(1), part(2), {}});
    });
    if (!rule.is_empty()) {
      kernels.apply_backward(rule, rows_of(qkv), heads, qkv.size(3) / (3 * heads), rows_of(dqkv));
    }
    return {at::Tensor(), dqkv};
  }

 private:
  /// What holds the queries and keys that attention reads: [G, N, M, 2 C], or packed where they are
  /// ready there.
  static at::Tensor ready_heads(BlockKernels& kernels, const SelfAttentionData& data,
                                const at::Tensor& packed) {
    if (data.rule.is_empty()) {
      return packed;
    }
    std::vector<int64_t> shape = packed.sizes().vec();
    shape[3] = shape[3] / 3 * 2;
    at::Tensor ready = at::empty(shape, packed.options());
    kernels.apply(data.rule, rows_of(packed), data.heads, rows_of(ready));
    return ready;
  }

  /// function(sequences, inputs, group) for every launch.
  template <typename Function>
  static void for_each(const at::Tensor& qk, const at::Tensor& qkv, int64_t heads,
                       const Function& function) {
    const Sequences sequences(qkv);
    const at::Tensor ready = split(qk, qk.size(3) == qkv.size(3) ? 3 : 2, heads);
    const at::Tensor packed = split(qkv, 3, heads);
    for (int64_t group = 0; group < sequences.groups; ++group) {
      function(sequences,
               {sequences.heads(ready.select(3, 0), group),
                sequences.heads(ready.select(3, 1), group),
                sequences.heads(packed.select(3, 2), group),
                {}},
               group);
    }
  }
};

struct CrossAttentionData {
  int64_t heads = 1;
  bool keeps = false;
};

struct CrossAttention : torch::autograd::Function<CrossAttention> {
  static at::Tensor forward(AutogradContext* context, const Held<CrossAttentionData>& held,
                            const at::Tensor& q, const at::Tensor& kv, const at::Tensor& lengths) {
    const auto& [heads, keeps] = held->data;
    const at::Tensor queries = q.contiguous();
    const at::Tensor keys = kv.contiguous();
    at::Tensor out = at::empty_like(queries);
    at::Tensor lse;
    if (keeps) {
      lse = at::empty({q.size(0), heads, q.size(1)}, q.options().dtype(at::kFloat));
    }
    const bool has_lse = held->kernels.attend(views(queries, keys, lengths, heads),
                                              out.unflatten(2, {heads, -1}), lse);
    if (keeps) {
      keep(context, held);
      context->save_for_backward({queries, keys, lengths, out, has_lse ? lse : at::Tensor()});
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held = kept<CrossAttentionData>(context);
    const int64_t heads = held->data.heads;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dq = at::empty_like(saved[0]);
    const at::Tensor dkv = at::zeros_like(saved[1]);  // padding has no gradient
    held->kernels.attend_backward(incoming[0].contiguous().unflatten(2, {heads, -1}),
                                  views(saved[0], saved[1], saved[2], heads),
                                  saved[3].unflatten(2, {heads, -1}), saved[4],
                                  views(dq, dkv, {}, heads));
    return {at::Tensor(), dq, dkv, at::Tensor()};
  }

 private:
  static HeadTensors views(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& lengths,
                           int64_t heads) {
    const at::Tensor pairs = kv.unflatten(2, {2, heads, -1});
    return {q.unflatten(2, {heads, -1}), pairs.select(2, 0), pairs.select(2, 1), lengths};
  }
};

void check_vectors(const at::Tensor& vectors, const at::Tensor& x) {
  KINORA_CHECK(vectors.dim() == 2 && vectors.size(1) == x.size(-1) && vectors.size(0) > 0 &&
                   (x.numel() / x.size(-1)) % vectors.size(0) == 0 && vectors.stride(1) == 1 &&
                   vectors.scalar_type() == at::kFloat,
               kShape, "[fused] vectors must be float32 [V, ", x.size(-1),
               "] with V a divisor of the rows of x, ", x.sizes(), ", got ", vectors.scalar_type(),
               " ", vectors.sizes());
}

}  // namespace

at::Tensor linear(BlockKernels& kernels, const at::Tensor& x, const LinearWeights& weights) {
  KINORA_CHECK(
      x.size(-1) == weights.weight.size(1) && x.scalar_type() == weights.weight.scalar_type(),
      kShape, "[fused] x must be ", weights.weight.scalar_type(), " [..., ", weights.weight.size(1),
      "], got ", x.scalar_type(), " ", x.sizes());
  return Linear::apply(hold(kernels, weights), x, weights.weight);
}

at::Tensor mlp(BlockKernels& kernels, const at::Tensor& x, const LinearWeights& fc1,
               const LinearWeights& fc2) {
  KINORA_CHECK(x.size(-1) == fc1.weight.size(1) && x.scalar_type() == fc1.weight.scalar_type(),
               kShape, "[fused] x must be ", fc1.weight.scalar_type(), " [..., ",
               fc1.weight.size(1), "], got ", x.scalar_type(), " ", x.sizes());
  return Mlp::apply(hold(kernels, MlpData{fc1, fc2, at::GradMode::is_enabled()}), x, fc1.weight);
}

Normed seam(BlockKernels& kernels, const at::Tensor& x, const at::Tensor& branch,
            const SeamVectors& vectors, at::ScalarType h_type) {
  check_vectors(vectors.scale, x);
  const variable_list out =
      Seam::apply(hold(kernels, SeamData{h_type, at::GradMode::is_enabled()}), x, optional(branch),
                  optional(vectors.gate), vectors.scale, vectors.shift);
  return {out[0], out[1]};
}

at::Tensor gated_add(BlockKernels& kernels, const at::Tensor& x, const at::Tensor& branch,
                     const at::Tensor& gate) {
  check_vectors(gate, x);
  return GatedAdd::apply(hold(kernels, Nothing{}), x, branch, gate);
}

at::Tensor self_attention(BlockKernels& kernels, const at::Tensor& qkv, int64_t heads,
                          const HeadRule& rule) {
  KINORA_CHECK(qkv.dim() == 4 && qkv.size(3) % (3 * heads) == 0, kShape,
               "[fused] qkv must be [G, N, M, 3 * heads * D] with ", heads, " heads, got ",
               qkv.sizes());
  return SelfAttention::apply(
      hold(kernels, SelfAttentionData{heads, rule, at::GradMode::is_enabled()}), qkv);
}

at::Tensor cross_attention(BlockKernels& kernels, const at::Tensor& q, const at::Tensor& kv,
                           const at::Tensor& lengths, int64_t heads) {
  KINORA_CHECK(q.dim() == 3 && kv.dim() == 3 && kv.size(0) == q.size(0) &&
                   kv.size(2) == 2 * q.size(2) && lengths.dim() == 1 &&
                   lengths.size(0) == q.size(0) && lengths.scalar_type() == at::kInt &&
                   lengths.is_contiguous(),
               kShape, "[fused] kv and lengths must be [B, L, 2 C] and int32 [B] of q ", q.sizes(),
               ", got ", kv.sizes(), " and ", lengths.scalar_type(), " ", lengths.sizes());
  return CrossAttention::apply(hold(kernels, CrossAttentionData{heads, at::GradMode::is_enabled()}),
                               q, kv, lengths);
}

}  // namespace kinora::ops::fused
