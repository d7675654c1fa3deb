/* SPDX-License-Identifier: MIT
 *
 * Every op alone, in double: what B computes with the op's own parameters
 * frozen, and what W computes with its input frozen, against central
 * differences; element by element.
 *
 *     h = data W0 + b0     (the input of the op; trained in B's case)
 *     y = op(h)            (its own parameters trained in W's case)
 *     loss = sum (y - target)^2, or the op's own
 */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B ZB_DIM(ZB_SYM_BATCH)
#define T ZB_DIM(ZB_SYM_SEQ)
#define ROWS 2
#define SEQ 3
#define IN 5
#define H 8
#define VOCAB 7

struct ctx {
    struct zb_graph *g;
    int own_frozen; /* B's case */
    int ids, labels, mask;
    int is_loss; /* y is a loss already */
};

static int own(struct ctx *k, const char *name, int n_dims, int64_t a,
               int64_t b)
{
    const int64_t dim[] = {a, b};
    const struct zb_param_opts opts = {.init = ZB_INIT_NORMAL,
                                       .is_frozen = k->own_frozen};

    return zb_g_param(k->g, name, n_dims, dim, &opts);
}

static int heads(struct ctx *k, int x, int64_t first, int64_t n)
{
    const int64_t dim[] = {B, T, n, 2};

    return zb_g_reshape(k->g, zb_g_slice(k->g, x, first, 2 * n), 4, dim);
}

/* ---- the ops ------------------------------------------------------------- */

static int op_linear(struct ctx *k, int x)
{
    return zb_g_linear(k->g, x, own(k, "w", 2, 6, H), own(k, "b", 1, 6, 0), 0);
}

static int op_linear_in_by_out(struct ctx *k, int x)
{
    return zb_g_linear(k->g, x, own(k, "w", 2, H, 6), own(k, "b", 1, 6, 0), 1);
}

static int op_linear_of_slice(struct ctx *k, int x)
{
    return zb_g_linear(k->g, zb_g_slice(k->g, x, 3, 4), own(k, "w", 2, 6, 4),
                       ZB_G_NONE, 0);
}

static int op_embedding(struct ctx *k, int x)
{
    return zb_g_add(
        k->g, x,
        zb_g_embedding(k->g, k->ids, own(k, "table", 2, VOCAB, H), -1));
}

static int op_position(struct ctx *k, int x)
{
    return zb_g_position(k->g, x, own(k, "table", 2, SEQ + 2, H), 1);
}

static int op_layernorm(struct ctx *k, int x)
{
    return zb_g_layernorm(k->g, x, own(k, "gamma", 1, H, 0),
                          own(k, "beta", 1, H, 0), 1e-2);
}

static int op_layernorm_residual(struct ctx *k, int x)
{
    return zb_g_add(k->g, op_layernorm(k, x), x);
}

static int op_layernorm_of_slice(struct ctx *k, int x)
{
    return zb_g_layernorm(k->g, zb_g_slice(k->g, x, 2, 4),
                          own(k, "gamma", 1, 4, 0), ZB_G_NONE, 1e-2);
}

static int op_layernorm_heads(struct ctx *k, int x)
{
    const int64_t flat[] = {B, T, H};
    int y = zb_g_layernorm(k->g, heads(k, x, 0, 4), own(k, "gamma", 2, 4, 2),
                           own(k, "beta", 2, 4, 2), 1e-1);

    return zb_g_reshape(k->g, y, 3, flat);
}

static int op_rmsnorm(struct ctx *k, int x)
{
    return zb_g_rmsnorm(k->g, x, own(k, "gamma", 1, H, 0), 1e-2);
}

static int rotate(struct ctx *k, int x, int interleaved)
{
    const int64_t dim[] = {SEQ, 1}, flat[] = {B, T, 4};
    const zb_real c[SEQ] = {1, (zb_real)0.6, (zb_real)-0.28};
    const zb_real s[SEQ] = {0, (zb_real)0.8, (zb_real)0.96};
    int cos_table = zb_g_const(k->g, "cos", 2, dim, c);
    int sin_table = zb_g_const(k->g, "sin", 2, dim, s);

    x = zb_g_rope(k->g, heads(k, x, 2, 2), cos_table, sin_table, interleaved);
    return zb_g_reshape(k->g, x, 3, flat);
}

static int op_rope(struct ctx *k, int x)
{
    return rotate(k, x, 0);
}

static int op_rope_interleaved(struct ctx *k, int x)
{
    return rotate(k, x, 1);
}

static int attend(struct ctx *k, int x, int causal, double dropout, int mask)
{
    const struct zb_attn_opts opts = {.causal = causal,
                                      .scale = 0.9,
                                      .dropout = dropout,
                                      .key_mask = mask};

    return zb_g_attention(k->g, heads(k, x, 0, 2), heads(k, x, 4, 1),
                          heads(k, x, 6, 1), &opts);
}

static int op_attention_causal(struct ctx *k, int x)
{
    return attend(k, x, 1, 0, ZB_G_NONE);
}

static int op_attention_masked(struct ctx *k, int x)
{
    return attend(k, x, 0, 0, k->mask);
}

static int op_attention_dropout(struct ctx *k, int x)
{
    return attend(k, x, 1, 0.4, k->mask);
}

static int op_attention_window(struct ctx *k, int x)
{
    const struct zb_attn_opts opts = {
        .causal = 1, .scale = 0.9, .key_mask = ZB_G_NONE, .window = 2};

    return zb_g_attention(k->g, heads(k, x, 0, 2), heads(k, x, 4, 1),
                          heads(k, x, 6, 1), &opts);
}

static int op_attention_slopes(struct ctx *k, int x)
{
    static const zb_real slope[] = {0.5F, 0.125F};
    const int64_t two = 2;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 0.9,
        .dropout = 0.4,
        .key_mask = k->mask,
        .slopes = zb_g_const(k->g, "slopes", 1, &two, slope),
        .has_slopes = 1,
    };

    return zb_g_attention(k->g, heads(k, x, 0, 2), heads(k, x, 4, 1),
                          heads(k, x, 6, 1), &opts);
}

static int op_act_silu(struct ctx *k, int x)
{
    return zb_g_act(k->g, x, ZB_ACT_SILU);
}

static int op_act_gelu_tanh(struct ctx *k, int x)
{
    return zb_g_act(k->g, x, ZB_ACT_GELU_TANH);
}

static int op_act_gelu_erf(struct ctx *k, int x)
{
    return zb_g_act(k->g, x, ZB_ACT_GELU_ERF);
}

static int op_act_relu(struct ctx *k, int x)
{
    return zb_g_act(k->g, x, ZB_ACT_RELU);
}

static int op_gated(struct ctx *k, int x)
{
    return zb_g_gated(k->g, zb_g_slice(k->g, x, 0, 4),
                      zb_g_slice(k->g, x, 4, 4), ZB_ACT_SILU);
}

static int op_gated_overlapping(struct ctx *k, int x)
{
    return zb_g_gated(k->g, zb_g_slice(k->g, x, 0, 5),
                      zb_g_slice(k->g, x, 2, 5), ZB_ACT_GELU_TANH);
}

static int op_add_twice(struct ctx *k, int x)
{
    return zb_g_add(k->g, zb_g_add(k->g, x, x), zb_g_scale(k->g, x, -0.3));
}

static int op_dropout(struct ctx *k, int x)
{
    return zb_g_dropout(k->g, x, 0.4);
}

static int op_reshape(struct ctx *k, int x)
{
    const int64_t dim[] = {B, T, 2, H / 2};

    return zb_g_act(k->g, zb_g_reshape(k->g, x, 4, dim), ZB_ACT_SILU);
}

static int op_dense(struct ctx *k, int x)
{
    const int64_t four[] = {B, T, 4, 2}, flat[] = {B, T, 4};
    int y = zb_g_slice(k->g, zb_g_reshape(k->g, x, 4, four), 1, 1);

    return zb_g_act(k->g, zb_g_reshape(k->g, zb_g_dense(k->g, y), 3, flat),
                    ZB_ACT_SILU);
}

static int op_act_tanh(struct ctx *k, int x)
{
    return zb_g_act(k->g, x, ZB_ACT_TANH);
}

/* Its input is read again, so that two gradients meet. */
static int op_first(struct ctx *k, int x)
{
    int y = zb_g_act(k->g, x, ZB_ACT_SILU);

    return zb_g_first(k->g, zb_g_add(k->g, y, x));
}

static int op_xent(struct ctx *k, int x)
{
    k->is_loss = 1;
    return zb_g_xent(k->g, zb_g_slice(k->g, x, 0, VOCAB), k->labels);
}

static int op_xent_scaled(struct ctx *k, int x)
{
    return zb_g_scale(k->g, op_xent(k, x), 0.25);
}

static const struct {
    const char *name;
    int (*build)(struct ctx *k, int x);
    int has_weights;
} ops[] = {
    {"linear", op_linear, 1},
    {"linear_in_by_out", op_linear_in_by_out, 1},
    {"linear_of_slice", op_linear_of_slice, 1},
    {"embedding", op_embedding, 1},
    {"position", op_position, 1},
    {"layernorm", op_layernorm, 1},
    {"layernorm_residual", op_layernorm_residual, 1},
    {"layernorm_of_slice", op_layernorm_of_slice, 1},
    {"layernorm_heads", op_layernorm_heads, 1},
    {"rmsnorm", op_rmsnorm, 1},
    {"rope", op_rope, 0},
    {"rope_interleaved", op_rope_interleaved, 0},
    {"attention_causal", op_attention_causal, 0},
    {"attention_masked", op_attention_masked, 0},
    {"attention_dropout", op_attention_dropout, 0},
    {"attention_window", op_attention_window, 0},
    {"attention_slopes", op_attention_slopes, 0},
    {"act_silu", op_act_silu, 0},
    {"act_gelu_tanh", op_act_gelu_tanh, 0},
    {"act_gelu_erf", op_act_gelu_erf, 0},
    {"act_relu", op_act_relu, 0},
    {"act_tanh", op_act_tanh, 0},
    {"first", op_first, 0},
    {"gated", op_gated, 0},
    {"gated_overlapping", op_gated_overlapping, 0},
    {"add_twice", op_add_twice, 0},
    {"dropout", op_dropout, 0},
    {"reshape", op_reshape, 0},
    {"dense_slice", op_dense, 0},
    {"xent", op_xent, 0},
    {"xent_scaled", op_xent_scaled, 0},
};

/* ---- one graph ----------------------------------------------------------- */

static int build(struct ctx *k, size_t op)
{
    const int64_t bt[] = {B, T}, in[] = {B, T, IN}, w0[] = {H, IN}, b0[] = {H};
    const struct zb_param_opts opts = {.is_frozen = !k->own_frozen};
    int x, target, y;

    ZBT_OK(zb_graph_new(&k->g));
    x = zb_g_data(k->g, "x", ZB_DTYPE_REAL, 3, in);
    k->ids = zb_g_data(k->g, "ids", ZB_DTYPE_I32, 2, bt);
    k->labels = zb_g_data(k->g, "labels", ZB_DTYPE_I32, 2, bt);
    k->mask = zb_g_data(k->g, "mask", ZB_DTYPE_I32, 2, bt);
    zb_g_layer(k->g, "op");
    x = zb_g_linear(k->g, x, zb_g_param(k->g, "w0", 2, w0, &opts),
                    zb_g_param(k->g, "b0", 1, b0, &opts), 0);
    y = ops[op].build(k, x);
    if (!k->is_loss) {
        const int64_t four[] = {B, T, 2, H / 2};
        const int64_t six[] = {B, T, 6}, whole[] = {B, T, H};
        const int64_t half[] = {B, T, 4}, five[] = {B, T, 5}, row[] = {B, H};
        const int64_t *dim = whole;
        int n = 3;

        if (strcmp(ops[op].name, "reshape") == 0) {
            dim = four;
            n = 4;
        } else if (strcmp(ops[op].name, "first") == 0) {
            dim = row;
            n = 2;
        } else if (strncmp(ops[op].name, "linear", 6) == 0) {
            dim = six;
        } else if (strstr(ops[op].name, "overlapping") != NULL) {
            dim = five;
        } else if (strstr(ops[op].name, "slice") != NULL ||
                   strstr(ops[op].name, "rope") != NULL ||
                   strstr(ops[op].name, "gated") != NULL ||
                   strstr(ops[op].name, "attention") != NULL) {
            dim = half;
        }
        target = zb_g_data(k->g, "target", ZB_DTYPE_REAL, n, dim);
        y = zb_g_mse(k->g, y, target);
    }
    zb_g_loss(k->g, y, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(k->g));
    return 0;
}

struct fields {
    zb_real x[ROWS * SEQ * IN], target[ROWS * SEQ * H];
    int32_t ids[ROWS * SEQ], labels[ROWS * SEQ], mask[ROWS * SEQ];
    const void *data[5];
    struct rig_batch batch;
};

static void make_fields(struct fields *f)
{
    rig_random(1, f->x, ROWS * SEQ * IN, 1);
    rig_random(2, f->target, ROWS * SEQ * H, 1);
    for (int i = 0; i < ROWS * SEQ; i++) {
        f->ids[i] = (i * i + 2) % VOCAB;
        f->labels[i] = i == 1 ? -100 : (3 * i) % VOCAB;
        f->mask[i] = i != 4;
    }
    f->data[0] = f->x;
    f->data[1] = f->ids;
    f->data[2] = f->labels;
    f->data[3] = f->mask;
    f->data[4] = f->target;
    f->batch = (struct rig_batch){ROWS, SEQ, f->data};
}

static double loss_of(const struct zb_graph *g, zb_real **params,
                      const struct fields *f, const struct rig_opts *o)
{
    struct rig_opts forward = *o;
    struct rig_result r;
    double loss;

    forward.no_backward = 1;
    rig_run(g, params, &f->batch, &forward, &r);
    loss = r.loss;
    rig_result_free(&r);
    return loss;
}

/* Every element of one parameter. */
static double worst_element(const struct zb_graph *g, zb_real **params,
                            const struct fields *f, const struct rig_opts *o,
                            const struct rig_result *r, int p)
{
    const double h = 1e-5;
    struct zb_param_info info = zb_graph_param(g, p);
    int64_t n = zb_shape_elems(&info.shape);
    double *grad = rig_param_grad(g, r, p), worst = 0;

    for (int64_t i = 0; i < n; i++) {
        zb_real old = params[p][i];
        double up, down, e;

        params[p][i] = (zb_real)((double)old + h);
        up = loss_of(g, params, f, o);
        params[p][i] = (zb_real)((double)old - h);
        down = loss_of(g, params, f, o);
        params[p][i] = old;
        e = fabs(grad[i] - (up - down) / (2 * h));
        worst = e > worst ? e : worst;
    }
    free(grad);
    return worst;
}

static void check_op(size_t op, int own_frozen)
{
    struct ctx k = {.own_frozen = own_frozen};
    struct fields f;
    struct rig_result r;
    int first[2] = {0, 1}, n_checked = 0;
    struct rig_opts o = {.n_chunks = 1, .first = first, .seed = 5,
                         .loss_scale = 1};
    zb_real **params;

    make_fields(&f);
    build(&k, op);
    params = rig_params(k.g, 3);
    rig_run(k.g, params, &f.batch, &o, &r);
    for (int p = 0; p < zb_graph_n_params(k.g); p++) {
        double e;

        if (!zb_graph_param(k.g, p).has_gradient) {
            continue;
        }
        e = worst_element(k.g, params, &f, &o, &r, p);
        if (!(e <= 1e-7)) {
            printf("\n%s, %s: off by %.3g\n", ops[op].name,
                   zb_graph_param(k.g, p).name, e);
            CU_FAIL("the gradient is not the derivative");
        }
        n_checked++;
    }
    CU_ASSERT(n_checked > 0);
    rig_result_free(&r);
    rig_params_free(k.g, params);
    zb_graph_free(k.g);
}

static void backward_input_equals_differences(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(ops); i++) {
        check_op(i, 1);
    }
}

static void backward_weight_equals_differences(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(ops); i++) {
        if (ops[i].has_weights) {
            check_op(i, 0);
        }
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(backward_input_equals_differences),
        ZBT_CASE(backward_weight_equals_differences),
    };

    return zbt_run("graph_ops", cases, ZB_COUNT_OF(cases));
}
