#include "kinora/ops/token_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sequences of [G, N, M, ...] that one launch can take: all where M is 1, else those of group
/// g.
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

/// The parts of tokens [G, N, M, parts * C] as [G, N, M, parts, H, D].
at::Tensor split(const at::Tensor& tokens, int64_t parts, int64_t heads) {
  return tokens.unflatten(3, {parts, heads, tokens.size(3) / (parts * heads)});
}

/// [G, N, M, C] -> [R, C].
at::Tensor flat_rows(const at::Tensor& tokens) {
  return tokens.view({-1, tokens.size(-1)});
}

/// Tokens [G, N, M, C] like those given, with room behind each.
at::Tensor empty_tokens(const BlockKernels& kernels, const at::Tensor& like, int64_t width,
                        int64_t room) {
  const int64_t rows = like.numel() / like.size(3);
  const at::Tensor tokens = room > 0 ? kernels.empty_with_room(rows, width, room)
                                     : at::empty({rows, width}, like.options());
  return tokens.view({like.size(0), like.size(1), like.size(2), width});
}

/// Queries and keys as attention reads them: [G, N, M, 2 C], or `packed` where they are ready.
at::Tensor ready_heads(BlockKernels& kernels, const at::Tensor& packed, int64_t heads,
                       const HeadRule& rule) {
  if (rule.is_empty()) {
    return packed;
  }
  std::vector<int64_t> shape = packed.sizes().vec();
  shape[3] = shape[3] / 3 * 2;
  at::Tensor ready = at::empty(shape, packed.options());
  kernels.apply(rule, flat_rows(packed), heads, flat_rows(ready));
  return ready;
}

/// function(sequences, inputs, group) for every launch.
template <typename Function>
void for_each(const at::Tensor& ready, const at::Tensor& packed, int64_t heads,
              const AttendedKeys& keys, const Function& function) {
  const Sequences sequences(packed);
  KINORA_CHECK((!keys.lengths.defined() && keys.blocks == nullptr) || !sequences.is_strided,
               kInternal,
               "[self_attention] only sequences whose tokens are neighbours attend to some keys");
  const at::Tensor qk = split(ready, ready.size(3) == packed.size(3) ? 3 : 2, heads);
  const at::Tensor qkv = split(packed, 3, heads);
  for (int64_t group = 0; group < sequences.groups; ++group) {
    function(sequences,
             HeadTensors{sequences.heads(qk.select(3, 0), group),
                         sequences.heads(qk.select(3, 1), group),
                         sequences.heads(qkv.select(3, 2), group), keys},
             group);
  }
}

/// What the function needs besides tensors, through the context's IValue map.
struct Held : torch::CustomClassHolder {
  Held(BlockKernels& kernels, int64_t heads, HeadRule rule, AttendedKeys keys)
      : kernels(kernels), heads(heads), rule(std::move(rule)), keys(std::move(keys)) {}
  BlockKernels& kernels;
  const int64_t heads;
  const HeadRule rule;
  const AttendedKeys keys;
};

struct SelfAttention : torch::autograd::Function<SelfAttention> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Held>& held,
                            const at::Tensor& given) {
    const at::Tensor packed = given.contiguous();
    const AttendedTokens out = attend_tokens(held->kernels, packed, held->heads, held->rule,
                                             /*keep=*/true, /*room=*/0, held->keys);
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    context->save_for_backward({packed, out.ready, out.out, out.lse});
    return out.out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    const variable_list saved = context->get_saved_variables();
    return {at::Tensor(),
            attend_tokens_backward(held->kernels, incoming[0], saved[0],
                                   {saved[1], saved[2], saved[3]}, held->heads, held->rule,
                                   /*room=*/0, held->keys)};
  }
};

/// [R, ..] as the rows of one sample.
at::Tensor one_sample(const at::Tensor& rows) {
  return rows.unsqueeze(0);
}

struct RuledHeads : torch::autograd::Function<RuledHeads> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Held>& held,
                            const at::Tensor& given) {
    const at::Tensor packed = given.contiguous();
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    context->save_for_backward({packed});
    at::Tensor out = at::empty_like(packed);
    held->kernels.place_heads(held->rule, packed, held->heads, one_sample(out));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    const at::Tensor packed = context->get_saved_variables()[0];
    at::Tensor din = at::empty_like(packed);
    held->kernels.place_heads_backward(held->rule, packed, held->heads,
                                       one_sample(incoming[0].contiguous()), din);
    return {at::Tensor(), din};
  }
};

}  // namespace

AttendedTokens attend_tokens(BlockKernels& kernels, const at::Tensor& packed, int64_t heads,
                             const HeadRule& rule, bool keep, int64_t room,
                             const AttendedKeys& keys) {
  const std::vector<int64_t> shape = packed.sizes().vec();
  const at::Tensor ready = ready_heads(kernels, packed, heads, rule);
  AttendedTokens result{rule.is_empty() ? at::Tensor() : ready,
                        empty_tokens(kernels, packed, shape[3] / 3, room),
                        {}};
  if (keep) {
    result.lse =
        at::empty({shape[0], shape[2], heads, shape[1]}, packed.options().dtype(at::kFloat));
  }
  bool has_lse = keep;
  const at::Tensor out = split(result.out, 1, heads).select(3, 0);
  for_each(ready, packed, heads, keys,
           [&](const Sequences& sequences, const HeadTensors& in, int64_t group) {
             has_lse = kernels.attend(in, sequences.heads(out, group),
                                      sequences.statistics(result.lse, group)) &&
                       has_lse;
           });
  if (!has_lse) {
    result.lse = at::Tensor();
  }
  return result;
}

at::Tensor attend_tokens_backward(BlockKernels& kernels, const at::Tensor& dout,
                                  const at::Tensor& packed, const AttendedTokens& forward,
                                  int64_t heads, const HeadRule& rule, int64_t room,
                                  const AttendedKeys& keys) {
  const at::Tensor ready =
      forward.ready.defined() ? forward.ready : ready_heads(kernels, packed, heads, rule);
  const at::Tensor out = split(forward.out, 1, heads).select(3, 0);
  const at::Tensor dout_heads = split(dout.contiguous(), 1, heads).select(3, 0);
  at::Tensor dpacked = empty_tokens(kernels, packed, packed.size(3), room);
  if (keys.lengths.defined()) {
    dpacked.zero_();  // keys that are not attended to
  }
  const at::Tensor grads = split(dpacked, 3, heads);
  for_each(ready, packed, heads, keys,
           [&](const Sequences& sequences, const HeadTensors& in, int64_t group) {
             const auto part = [&](int64_t index) {
               return sequences.heads(grads.select(3, index), group);
             };
             kernels.attend_backward(
                 sequences.heads(dout_heads, group), in, sequences.heads(out, group),
                 sequences.statistics(forward.lse, group), {part(0), part(1), part(2), {}});
           });
  if (!rule.is_empty()) {
    kernels.apply_backward(rule, flat_rows(packed), heads, packed.size(3) / (3 * heads),
                           flat_rows(dpacked));
  }
  return dpacked;
}

at::Tensor self_attention(BlockKernels& kernels, const at::Tensor& packed, int64_t heads,
                          const HeadRule& rule, const AttendedKeys& keys) {
  KINORA_CHECK(packed.dim() == 4 && packed.size(3) % (3 * heads) == 0, kShape,
               "[self_attention] packed must be [G, N, M, 3 * heads * D] with ", heads,
               " heads, got ", packed.sizes());
  if (!at::GradMode::is_enabled()) {
    return attend_tokens(kernels, packed.contiguous(), heads, rule, /*keep=*/false, /*room=*/0,
                         keys)
        .out;
  }
  return SelfAttention::apply(c10::make_intrusive<Held>(kernels, heads, rule, keys), packed);
}

at::Tensor ruled_heads(BlockKernels& kernels, const at::Tensor& packed, int64_t heads,
                       const HeadRule& rule) {
  return rule.is_empty()
             ? packed
             : RuledHeads::apply(c10::make_intrusive<Held>(kernels, heads, rule, AttendedKeys()),
                                 packed);
}

}  // namespace kinora::ops
