/* SPDX-License-Identifier: MIT
 *
 * One row per op: all that the rest of the graph knows about it.
 */
#include "config.h"
#include "graph/graph_int.h"

#define ROW(op) .name = #op, .shape = zb_##op##_shape, .flops = zb_##op##_flops

#define IN_X(flag_bits, needs)                                                 \
    {                                                                          \
        .name = "x", .flags = (flag_bits), .need = (needs)                     \
    }
#define IN_WEIGHT(text, flag_bits)                                             \
    {                                                                          \
        .name = (text), .flags = ZB_IN_WEIGHT | (flag_bits),                   \
        .need = ZB_NEED_DENSE                                                  \
    }

const struct zb_op_row zb_op_rows[ZB_N_OPS] = {
    [ZB_OP_linear] = {
        ROW(linear),
        .flags = ZB_OP_ACCUMULATE,
        .n_in = 3,
        .in = {IN_X(ZB_IN_GRAD | ZB_IN_W, ZB_NEED_ROWS),
               IN_WEIGHT("weight", ZB_IN_B),
               IN_WEIGHT("bias", ZB_IN_OPTIONAL)},
        .variant = zb_linear_variant,
        .product = zb_linear_product,
        .forward = zb_linear_forward,
        .backward_input = zb_linear_backward_input,
        .backward_weight = zb_linear_backward_weight,
    },
    [ZB_OP_embedding] = {
        ROW(embedding),
        .flags = ZB_OP_CHEAP,
        .n_in = 2,
        .in = {{.name = "ids", .flags = ZB_IN_DATA | ZB_IN_I32 | ZB_IN_W},
               IN_WEIGHT("table", ZB_IN_SPARSE)},
        .forward = zb_embedding_forward,
        .backward_weight = zb_embedding_backward_weight,
    },
    [ZB_OP_position] = {
        ROW(position),
        .flags = ZB_OP_CHEAP,
        .n_in = 2,
        .in = {IN_X(ZB_IN_PASS, ZB_NEED_DENSE),
               IN_WEIGHT("table", ZB_IN_SPARSE)},
        .fits = zb_position_fits,
        .forward = zb_position_forward,
        .backward_weight = zb_position_backward_weight,
    },
    [ZB_OP_layernorm] = {
        ROW(layernorm),
        .flags = ZB_OP_CHEAP | ZB_OP_ADDEND | ZB_OP_IN_PLACE |
                 ZB_OP_WEIGHT_IN_B | ZB_OP_WEIGHT_JOINT,
        .n_in = 3,
        .in = {IN_X(ZB_IN_GRAD | ZB_IN_B | ZB_IN_W, ZB_NEED_DENSE),
               IN_WEIGHT("gamma", ZB_IN_B),
               IN_WEIGHT("beta", ZB_IN_OPTIONAL)},
        .out_b = 6, /* mean, rstd */
        .out_w = 6,
        .forward = zb_layernorm_forward,
        .backward_input = zb_layernorm_backward_input,
        .backward_weight = zb_layernorm_backward_weight,
    },
    [ZB_OP_rmsnorm] = {
        ROW(rmsnorm),
        .flags = ZB_OP_CHEAP | ZB_OP_ADDEND | ZB_OP_IN_PLACE |
                 ZB_OP_WEIGHT_IN_B | ZB_OP_WEIGHT_JOINT,
        .n_in = 2,
        .in = {IN_X(ZB_IN_GRAD | ZB_IN_B | ZB_IN_W, ZB_NEED_DENSE),
               IN_WEIGHT("gamma", ZB_IN_B)},
        .out_b = 2, /* rstd */
        .out_w = 2,
        .forward = zb_rmsnorm_forward,
        .backward_input = zb_rmsnorm_backward_input,
        .backward_weight = zb_rmsnorm_backward_weight,
    },
    [ZB_OP_rope] = {
        ROW(rope),
        .flags = ZB_OP_CHEAP,
        .n_in = 3,
        .in = {IN_X(ZB_IN_GRAD, ZB_NEED_HEADS),
               {.name = "cos", .flags = ZB_IN_CONST | ZB_IN_B | ZB_IN_SPARSE},
               {.name = "sin", .flags = ZB_IN_CONST | ZB_IN_B | ZB_IN_SPARSE}},
        .fits = zb_rope_fits,
        .variant = zb_rope_variant,
        .forward = zb_rope_forward,
        .backward_input = zb_rope_backward_input,
    },
    [ZB_OP_attention] = {
        ROW(attention),
        .n_in = 4,
        .in = {{"q", ZB_IN_GRAD | ZB_IN_B, ZB_NEED_HEADS},
               {"k", ZB_IN_GRAD | ZB_IN_B, ZB_NEED_HEADS},
               {"v", ZB_IN_GRAD | ZB_IN_B, ZB_NEED_HEADS},
               {"key_mask",
                ZB_IN_DATA | ZB_IN_I32 | ZB_IN_OPTIONAL | ZB_IN_B,
                ZB_NEED_DENSE}},
        .out_b = 3, /* out, lse */
        .variant = zb_attention_variant,
        .forward = zb_attention_forward,
        .backward_input = zb_attention_backward_input,
    },
    [ZB_OP_act] = {
        ROW(act),
        .flags = ZB_OP_CHEAP,
        .n_in = 1,
        .in = {IN_X(ZB_IN_GRAD | ZB_IN_B, ZB_NEED_DENSE)},
        .variant = zb_act_variant,
        .forward = zb_act_forward,
        .backward_input = zb_act_backward_input,
    },
    [ZB_OP_gated] = {
        ROW(gated),
        .flags = ZB_OP_CHEAP,
        .n_in = 2,
        .in = {{"gate", ZB_IN_GRAD | ZB_IN_B, ZB_NEED_ROWS},
               {"up", ZB_IN_GRAD | ZB_IN_B, ZB_NEED_ROWS}},
        .variant = zb_act_variant,
        .forward = zb_gated_forward,
        .backward_input = zb_gated_backward_input,
    },
    [ZB_OP_add] = {
        ROW(add),
        .flags = ZB_OP_CHEAP,
        .n_in = 2,
        .in = {{"a", ZB_IN_PASS, ZB_NEED_DENSE},
               {"b", ZB_IN_PASS, ZB_NEED_DENSE}},
        .uniform = zb_pass_uniform,
        .forward = zb_add_forward,
    },
    [ZB_OP_scale] = {
        ROW(scale),
        .flags = ZB_OP_CHEAP,
        .n_in = 1,
        .in = {IN_X(ZB_IN_GRAD, ZB_NEED_DENSE)},
        .uniform = zb_scale_uniform,
        .forward = zb_scale_forward,
        .backward_input = zb_scale_backward_input,
    },
    [ZB_OP_dropout] = {
        ROW(dropout),
        .flags = ZB_OP_CHEAP | ZB_OP_ADDEND,
        .n_in = 1,
        .in = {IN_X(ZB_IN_GRAD, ZB_NEED_DENSE)},
        .forward = zb_dropout_forward,
        .backward_input = zb_dropout_backward_input,
    },
    [ZB_OP_reshape] = {
        ROW(reshape),
        .flags = ZB_OP_ALIAS,
        .n_in = 1,
        .in = {IN_X(ZB_IN_PASS | ZB_IN_ANY, ZB_NEED_DENSE)},
        .alias = zb_reshape_alias,
        .uniform = zb_pass_uniform,
    },
    [ZB_OP_slice] = {
        ROW(slice),
        .flags = ZB_OP_ALIAS | ZB_OP_SLICE,
        .n_in = 1,
        .in = {IN_X(ZB_IN_PASS | ZB_IN_ANY, ZB_NEED_DENSE)},
        .alias = zb_slice_alias,
    },
    [ZB_OP_xent] = {
        ROW(xent),
        .flags = ZB_OP_LOSS,
        .n_in = 2,
        .in = {{"logits", ZB_IN_GRAD | ZB_IN_B | ZB_IN_OVERWRITE,
                ZB_NEED_ROWS},
               {"labels", ZB_IN_DATA | ZB_IN_I32 | ZB_IN_B, ZB_NEED_DENSE}},
        .out_b = 2, /* lse */
        .forward = zb_xent_forward,
        .backward_input = zb_xent_backward_input,
    },
    [ZB_OP_mse] = {
        ROW(mse),
        .flags = ZB_OP_LOSS,
        .n_in = 2,
        .in = {IN_X(ZB_IN_GRAD | ZB_IN_B, ZB_NEED_DENSE),
               {"target", ZB_IN_DATA | ZB_IN_B, ZB_NEED_DENSE}},
        .forward = zb_mse_forward,
        .backward_input = zb_mse_backward_input,
    },
};
