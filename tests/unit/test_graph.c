/* SPDX-License-Identifier: MIT
 *
 * The builder's refusals, what is found from a graph, cuts, and the memory of
 * chunks, on graphs small enough to know every number.
 */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#define B ZB_DIM(ZB_SYM_BATCH)
#define T ZB_DIM(ZB_SYM_SEQ)
#define H 16

static const struct zb_param_opts normal = {.init = ZB_INIT_NORMAL};
static const struct zb_param_opts frozen = {.is_frozen = 1};

static struct zb_graph *new_graph(void)
{
    struct zb_graph *g;

    ZBT_OK(zb_graph_new(&g));
    return g;
}

static int data3(struct zb_graph *g, const char *name)
{
    const int64_t dim[] = {B, T, H};

    return zb_g_data(g, name, ZB_DTYPE_REAL, 3, dim);
}

static int matrix(struct zb_graph *g, const char *name, int64_t rows,
                  int64_t cols)
{
    const int64_t dim[] = {rows, cols};

    return zb_g_param(g, name, 2, dim, &normal);
}

static int linear(struct zb_graph *g, const char *name, int x)
{
    return zb_g_linear(g, x, matrix(g, name, H, H), ZB_G_NONE, 0);
}

/* ---- refusals ------------------------------------------------------------ */

/* zb_graph_finish() fails with a text that has all the words. */
static void expect_mistake(struct zb_graph *g, const char *a, const char *b,
                           const char *c)
{
    const char *words[] = {a, b, c};

    CU_ASSERT_EQUAL(zb_graph_finish(g), ZB_EINVAL);
    for (int i = 0; i < 3; i++) {
        if (strstr(zb_error_text(), words[i]) == NULL) {
            printf("\n\"%s\" does not say \"%s\"\n", zb_error_text(),
                   words[i]);
            CU_FAIL("message");
        }
    }
    zb_graph_free(g);
}

static void wrong_weight_names_layer_and_shapes(void)
{
    struct zb_graph *g = new_graph();
    int x = data3(g, "x");

    zb_g_layer(g, "h.3");
    x = zb_g_linear(g, x, matrix(g, "w", 8, 9), ZB_G_NONE, 0);
    CU_ASSERT_EQUAL(x, -1);
    CU_ASSERT_EQUAL(linear(g, "v", x), -1);
    expect_mistake(g, "layer 'h.3', linear", "[B,T,16]", "'w' [8,9]");
}

static void first_mistake_is_reported(void)
{
    struct zb_graph *g = new_graph();
    int x = data3(g, "x");

    zb_g_layer(g, "a");
    zb_g_slice(g, x, 10, 7);
    zb_g_layer(g, "b");
    zb_g_add(g, x, -1);
    zb_g_loss(g, -1, ZB_G_NONE);
    expect_mistake(g, "layer 'a'", "slice", "[10, 17)");
}

static void bad_arguments_are_refused(void)
{
    struct zb_graph *g = new_graph();
    const int64_t zero[] = {4, 0}, huge[] = {1 << 30, 1 << 30};

    CU_ASSERT_EQUAL(zb_g_param(g, "p", 2, zero, &normal), -1);
    expect_mistake(g, "parameter 'p'", "dimension 1", "0");
    g = new_graph();
    CU_ASSERT_EQUAL(zb_g_param(g, "p", 2, huge, &normal), -1);
    expect_mistake(g, "'p'", "1073741824", "");
    g = new_graph();
    zb_g_layer(g, "a");
    zb_g_linear(g, data3(g, "x"), 12345, ZB_G_NONE, 0);
    expect_mistake(g, "linear", "'weight'", "12345");
    g = new_graph();
    zb_g_layer(g, "a");
    zb_g_linear(g, data3(g, "x"), data3(g, "y"), ZB_G_NONE, 0);
    expect_mistake(g, "'weight'", "a parameter", "");
    g = new_graph();
    zb_g_add(g, data3(g, "x"), data3(g, "y"));
    expect_mistake(g, "before the first zb_g_layer", "", "");
}

static void shapes_that_do_not_fit_are_refused(void)
{
    struct zb_graph *g = new_graph();
    const int64_t three[] = {B, T, 3}, ids[] = {B, T}, one[] = {H};
    int x = data3(g, "x");

    zb_g_layer(g, "a");
    zb_g_reshape(g, x, 3, three);
    expect_mistake(g, "reshape", "[B,T,16]", "[B,T,3]");
    g = new_graph();
    x = data3(g, "x");
    zb_g_layer(g, "a");
    zb_g_rmsnorm(g, zb_g_slice(g, x, 0, 8), zb_g_param(g, "n", 1, one, &normal),
                 1e-5);
    expect_mistake(g, "rmsnorm", "'n' [16]", "[B,T,8]");
    g = new_graph();
    x = zb_g_data(g, "ids", ZB_DTYPE_I32, 2, ids);
    zb_g_layer(g, "a");
    zb_g_embedding(g, x, matrix(g, "e", 4, H), 4);
    expect_mistake(g, "embedding", "padding_idx 4", "[4,16]");
    g = new_graph();
    matrix(g, "w", 2, 3);
    matrix(g, "w", 3, 2);
    expect_mistake(g, "parameter 'w'", "[3,2]", "[2,3]");
}

static void loss_must_be_once_and_last(void)
{
    struct zb_graph *g = new_graph();
    int x = data3(g, "x");

    zb_g_layer(g, "a");
    x = linear(g, "w", x);
    expect_mistake(g, "no loss", "", "");
    g = new_graph();
    x = data3(g, "x");
    zb_g_layer(g, "first");
    x = linear(g, "w", x);
    zb_g_loss(g, x, ZB_G_NONE);
    zb_g_layer(g, "second");
    expect_mistake(g, "loss", "'first'", "last");
    g = new_graph();
    x = data3(g, "x");
    zb_g_layer(g, "a");
    x = linear(g, "w", x);
    zb_g_loss(g, x, ZB_G_NONE);
    zb_g_loss(g, x, ZB_G_NONE);
    expect_mistake(g, "one loss twice", "", "");
    g = new_graph();
    x = data3(g, "x");
    zb_g_layer(g, "a");
    for (int i = 0; i <= ZB_LOSS_MAX; i++) {
        x = linear(g, i == 0 ? "w0" : i == 1 ? "w1" : "w2", x);
        zb_g_loss(g, x, ZB_G_NONE);
    }
    expect_mistake(g, "more than 2 losses", "", "");
}

static void loss_op_inside_model_is_refused(void)
{
    struct zb_graph *g = new_graph();
    int x = data3(g, "x"), y = data3(g, "y");

    zb_g_layer(g, "a");
    x = zb_g_mse(g, linear(g, "w", x), y);
    zb_g_loss(g, zb_g_act(g, x, ZB_ACT_SILU), ZB_G_NONE);
    expect_mistake(g, "layer 'a'", "mse", "add, scale and reshape");
}

static void too_long_sequence_is_refused(void)
{
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 9}};
    struct zb_chunk *c;
    int x = data3(g, "x");

    zb_g_layer(g, "a");
    x = zb_g_position(g, linear(g, "w", x), matrix(g, "wpe", 10, H), 2);
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    CU_ASSERT_EQUAL(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &c),
                    ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "a/position wpe"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "9"));
    max.value[ZB_SYM_SEQ] = 8;
    ZBT_OK(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &c));
    zb_chunk_free(c);
    max.value[ZB_SYM_BATCH] = 0;
    CU_ASSERT_EQUAL(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &c),
                    ZB_EINVAL);
    zb_graph_free(g);
}

/* ---- gradients and uses -------------------------------------------------- */

/* x -> frozen linear -> tied twice -> output; one branch leads nowhere. */
static struct zb_graph *uses_graph(void)
{
    const int64_t dim[] = {H, H};
    struct zb_graph *g = new_graph();
    int x = data3(g, "x"), w;

    zb_g_layer(g, "a");
    w = zb_g_param(g, "frozen", 2, dim, &frozen);
    x = zb_g_linear(g, x, w, ZB_G_NONE, 0);
    x = linear(g, "tied", x);
    linear(g, "dead", x);
    matrix(g, "unread", 3, 3);
    zb_g_layer(g, "b");
    x = linear(g, "tied", x);
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    return g;
}

static struct zb_param_info info_of(const struct zb_graph *g, const char *name)
{
    return zb_graph_param(g, zb_graph_find_param(g, name));
}

static void uses_are_counted_where_gradients_are(void)
{
    struct zb_graph *g = uses_graph();
    struct zb_param_info tied = info_of(g, "tied");

    CU_ASSERT_EQUAL(zb_graph_n_uses(g), 2);
    CU_ASSERT_EQUAL(tied.n_uses, 2);
    CU_ASSERT_EQUAL(tied.use_ids[0], 0);
    CU_ASSERT_EQUAL(tied.use_ids[1], 1);
    CU_ASSERT(tied.has_gradient);
    CU_ASSERT(!info_of(g, "frozen").has_gradient);
    CU_ASSERT(!info_of(g, "dead").has_gradient);
    CU_ASSERT(!info_of(g, "unread").has_gradient);
    CU_ASSERT_EQUAL(zb_graph_find_param(g, "none"), -1);
    zb_graph_free(g);
}

static void every_param_has_a_chunk(void)
{
    struct zb_graph *g = uses_graph();
    struct zb_bind max = {{2, 3}};
    struct zb_chunk *a, *b;
    struct zb_chunk_info ia, ib;

    ZBT_OK(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &a));
    ZBT_OK(zb_chunk_new(g, 1, 2, &max, ZB_RECOMPUTE_NONE, &b));
    ia = zb_chunk_info(a);
    ib = zb_chunk_info(b);
    CU_ASSERT_EQUAL(ia.n_params, 4);
    CU_ASSERT_EQUAL(ib.n_params, 1);
    CU_ASSERT_EQUAL(ia.n_uses, 1);
    CU_ASSERT_EQUAL(ia.uses[0], 0);
    CU_ASSERT_EQUAL(ib.uses[0], 1);
    CU_ASSERT(!ia.has_loss && ib.has_loss);
    /* F: frozen, tied; the dead branch is not run. No gradient for x. */
    CU_ASSERT_EQUAL(ia.n_ops[ZB_PASS_F], 2);
    CU_ASSERT_EQUAL(ia.n_ops[ZB_PASS_B], 0);
    CU_ASSERT_EQUAL(ia.n_ops[ZB_PASS_W], 1);
    CU_ASSERT_EQUAL(ia.bytes[ZB_SPACE_DOUT], 0);
    CU_ASSERT_EQUAL(ia.din_until, ZB_PASS_W);
    CU_ASSERT_EQUAL(zb_chunk_n_in(b), 1);
    CU_ASSERT_STRING_EQUAL(zb_chunk_in(b, 0).name, "a/linear tied");
    zb_chunk_free(a);
    zb_chunk_free(b);
    zb_graph_free(g);
}

static void frozen_model_has_no_backward(void)
{
    const int64_t dim[] = {H, H};
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 3}};
    struct zb_chunk *c;
    struct zb_chunk_info info;
    int x = data3(g, "x"), y = data3(g, "y");

    zb_g_layer(g, "a");
    x = zb_g_linear(g, x, zb_g_param(g, "w", 2, dim, &frozen), ZB_G_NONE, 0);
    zb_g_layer(g, "b");
    zb_g_loss(g, zb_g_mse(g, x, y), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    CU_ASSERT_EQUAL(zb_graph_n_uses(g), 0);
    ZBT_OK(zb_chunk_new(g, 1, 2, &max, ZB_RECOMPUTE_NONE, &c));
    info = zb_chunk_info(c);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_B] + info.n_ops[ZB_PASS_W], 0);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_DOUT], 0);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FB], 0);
    CU_ASSERT_EQUAL(info.in_until, ZB_PASS_F);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* ---- memory -------------------------------------------------------------- */

static size_t pad(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* One residual block: y = x + W2 act(W1 rms(x)). What is kept, by hand:
 * rstd (F to B), the norm's y (F to W), W1's y (F to B), the activation (F to
 * W), dY of W1 (B to W). x is IN, dY of W2 is DIN, both as long as needed. */
static void residual_block_memory_by_hand(void)
{
    const int64_t n[] = {H};
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 5}};
    struct zb_chunk *c;
    struct zb_chunk_info info;
    size_t row = 2 * 5 * sizeof(zb_real);
    int x, y;

    x = data3(g, "x");
    zb_g_layer(g, "in");
    x = linear(g, "w0", x);
    zb_g_layer(g, "block");
    y = zb_g_rmsnorm(g, x, zb_g_param(g, "norm", 1, n, &normal), 1e-5);
    y = zb_g_linear(g, y, matrix(g, "w1", 3 * H, H), ZB_G_NONE, 0);
    y = zb_g_act(g, y, ZB_ACT_SILU);
    y = zb_g_linear(g, y, matrix(g, "w2", H, 3 * H), ZB_G_NONE, 0);
    x = zb_g_add(g, x, y);
    zb_g_layer(g, "out");
    zb_g_loss(g, linear(g, "w3", x), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_chunk_new(g, 1, 2, &max, ZB_RECOMPUTE_NONE, &c));
    info = zb_chunk_info(c);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_IN], pad(row * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_OUT], pad(row * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_DIN], pad(row * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_DOUT], pad(row * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FB], pad(row) + pad(row * 3 * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FW], pad(row * H) + pad(row * 3 * H));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_BW], pad(row * 3 * H));
    /* F: y of W2; B: dY of the activation, then the norm's dY, in turn. */
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_SCRATCH], pad(row * 3 * H));
    CU_ASSERT_EQUAL(info.in_until, ZB_PASS_B);
    CU_ASSERT_EQUAL(info.din_until, ZB_PASS_W);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_F], 5);
    /* dX of W2, act, W1, the norm with the residual, and its gamma. */
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_B], 5);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_W], 2);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* dlogits lie over the logits: one tensor from F to W, none from F to B. */
static void logits_become_their_gradient(void)
{
    const int64_t bt[] = {B, T};
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 5}};
    struct zb_chunk *c;
    struct zb_chunk_info info;
    int x = data3(g, "x"), labels = zb_g_data(g, "y", ZB_DTYPE_I32, 2, bt);

    zb_g_layer(g, "head");
    x = zb_g_linear(g, x, matrix(g, "w", 100, H), ZB_G_NONE, 0);
    zb_g_output(g, "logits", x);
    zb_g_loss(g, zb_g_xent(g, x, labels), labels);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &c));
    info = zb_chunk_info(c);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FW], pad(10 * 100 * sizeof(zb_real)));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FB], pad(10 * sizeof(zb_real)));
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_BW], 0);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* q, k, v of one matrix: views forward, and one packed gradient backward. */
static void packed_slices_need_no_copies(void)
{
    const int64_t heads[] = {B, T, 2, H / 2};
    const struct zb_attn_opts opts = {.causal = 1, .scale = 1,
                                      .key_mask = ZB_G_NONE};
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 5}};
    struct zb_chunk *c;
    struct zb_chunk_info info;
    int x = data3(g, "x"), part[3];

    zb_g_layer(g, "a");
    x = linear(g, "w0", x);
    x = zb_g_linear(g, x, matrix(g, "qkv", 3 * H, H), ZB_G_NONE, 0);
    for (int i = 0; i < 3; i++) {
        part[i] = zb_g_reshape(g, zb_g_slice(g, x, i * H, H), 4, heads);
    }
    x = zb_g_attention(g, part[0], part[1], part[2], &opts);
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_chunk_new(g, 0, 1, &max, ZB_RECOMPUTE_NONE, &c));
    info = zb_chunk_info(c);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_F], 4); /* with the loss sum */
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_B], 3); /* fill, attention, dX of qkv */
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_W], 2);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* An empty chunk copies forward and back what crosses, and keeps nothing. */
static void empty_chunk_passes_on(void)
{
    struct zb_graph *g = uses_graph();
    struct zb_bind max = {{2, 3}};
    struct zb_chunk *c;
    struct zb_chunk_info info;

    ZBT_OK(zb_chunk_new(g, 1, 1, &max, ZB_RECOMPUTE_NONE, &c));
    info = zb_chunk_info(c);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_IN], info.bytes[ZB_SPACE_OUT]);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_DIN], info.bytes[ZB_SPACE_DOUT]);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_F], 1);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_B], 1);
    CU_ASSERT_EQUAL(info.n_ops[ZB_PASS_W], 0);
    CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_FB] + info.bytes[ZB_SPACE_FW] +
                        info.bytes[ZB_SPACE_BW] +
                        info.bytes[ZB_SPACE_SCRATCH],
                    0);
    CU_ASSERT(!info.has_loss);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* A tensor of the first layer that the last ones read crosses every boundary
 * beside the stream; its gradient comes back as one sum. */
static void early_tensor_rides_along(void)
{
    struct zb_graph *g = new_graph();
    struct zb_bind max = {{2, 5}};
    struct zb_chunk *c;
    size_t one = pad(10 * H * sizeof(zb_real));
    int x = data3(g, "x"), early;

    zb_g_layer(g, "0");
    early = linear(g, "w0", x);
    x = early;
    for (int i = 1; i < 5; i++) {
        char name[8];

        snprintf(name, sizeof(name), "w%d", i);
        zb_g_layer(g, name + 1);
        x = linear(g, name, x);
        if (i >= 3) {
            x = zb_g_add(g, x, early);
        }
    }
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    for (int cut = 1; cut < 5; cut++) {
        struct zb_chunk_info info;

        ZBT_OK(zb_chunk_new(g, cut, cut + 1, &max, ZB_RECOMPUTE_NONE, &c));
        info = zb_chunk_info(c);
        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_IN], cut == 1 ? one : 2 * one);
        CU_ASSERT_EQUAL(info.bytes[ZB_SPACE_DOUT], info.bytes[ZB_SPACE_IN]);
        zb_chunk_free(c);
    }
    zb_graph_free(g);
}

/* ---- costs and cuts ------------------------------------------------------ */

static void flops_of_linear_by_hand(void)
{
    struct zb_graph *g = uses_graph();
    struct zb_bind bind = {{2, 3}};
    double one = 2.0 * 6 * H * H;
    struct zb_flops all = zb_graph_flops(g, 0, 2, &bind);
    struct zb_flops first = zb_graph_flops(g, 0, 1, &bind);

    CU_ASSERT_EQUAL(all.f, 3 * one);
    CU_ASSERT_EQUAL(all.b, 1 * one);
    CU_ASSERT_EQUAL(all.w, 2 * one);
    CU_ASSERT_EQUAL(first.f, 2 * one);
    CU_ASSERT_EQUAL(first.b, 0);
    CU_ASSERT_EQUAL(first.w, one);
    zb_graph_free(g);
}

static void expect_cut(int n, const int *got, const int *want)
{
    for (int i = 0; i <= n; i++) {
        if (got[i] != want[i]) {
            printf("\nboundary %d: %d, not %d\n", i, got[i], want[i]);
            CU_FAIL("cut");
        }
    }
}

static void uniform_cut_gives_extra_to_the_middle(void)
{
    int first[9];

    zb_cut_uniform(1, 6, 1, 4, first);
    expect_cut(4, first, (const int[]){0, 2, 4, 6, 8});
    zb_cut_uniform(1, 7, 1, 4, first);
    expect_cut(4, first, (const int[]){0, 2, 4, 6, 9});
    zb_cut_uniform(0, 10, 0, 8, first);
    expect_cut(8, first, (const int[]){0, 1, 2, 3, 5, 7, 8, 9, 10});
    zb_cut_uniform(0, 28, 0, 8, first);
    expect_cut(8, first, (const int[]){0, 3, 6, 10, 14, 18, 22, 25, 28});
    zb_cut_uniform(1, 2, 1, 4, first);
    expect_cut(4, first, (const int[]){0, 1, 2, 3, 4});
    zb_cut_uniform(1, 5, 1, 1, first);
    expect_cut(1, first, (const int[]){0, 7});
}

static void listed_cut_must_sum_up(void)
{
    int first[4];

    ZBT_OK(zb_cut_list(1, 5, 1, 3, (const int[]){2, 0, 3}, first));
    expect_cut(3, first, (const int[]){0, 3, 3, 7});
    CU_ASSERT_EQUAL(zb_cut_list(1, 5, 1, 3, (const int[]){2, 1, 3}, first),
                    ZB_ECONFIG);
    CU_ASSERT_EQUAL(zb_cut_list(1, 5, 1, 3, (const int[]){6, -1, 0}, first),
                    ZB_ECONFIG);
}

/* Layers of widths that are given; costs are proportional. */
static struct zb_graph *wide_layers(const int *width, int n)
{
    struct zb_graph *g = new_graph();
    int x = data3(g, "x");

    for (int i = 0; i < n; i++) {
        char name[16];
        int y;

        snprintf(name, sizeof(name), "up%d", i);
        zb_g_layer(g, name);
        y = zb_g_linear(g, x, matrix(g, name, width[i] * H, H), ZB_G_NONE, 0);
        snprintf(name, sizeof(name), "down%d", i);
        x = zb_g_linear(g, y, matrix(g, name, H, width[i] * H), ZB_G_NONE, 0);
    }
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    return g;
}

static double worst_chunk(const struct zb_graph *g, const struct zb_bind *bind,
                          int n, const int *first)
{
    double worst = 0;

    for (int c = 0; c < n; c++) {
        struct zb_flops k = zb_graph_flops(g, first[c], first[c + 1], bind);

        worst = fmax(worst, k.f + k.b + k.w);
    }
    return worst;
}

/* Try every cut of 7 layers into 3 chunks. */
static double best_of_all(const struct zb_graph *g, const struct zb_bind *bind)
{
    double best = INFINITY;

    for (int a = 0; a <= 7; a++) {
        for (int b = a; b <= 7; b++) {
            int first[] = {0, a, b, 7};

            best = fmin(best, worst_chunk(g, bind, 3, first));
        }
    }
    return best;
}

static void auto_cut_has_least_maximum(void)
{
    struct zb_bind bind = {{2, 3}};
    struct zbt_rng rng = {4};

    for (int k = 0; k < 40; k++) {
        struct zb_graph *g;
        int width[7], first[4];

        for (int i = 0; i < 7; i++) {
            width[i] = (int)zbt_rand_in(&rng, 1, k % 2 ? 3 : 9);
        }
        g = wide_layers(width, 7);
        ZBT_OK(zb_cut_auto(g, &bind, 3, first));
        CU_ASSERT_EQUAL(first[0], 0);
        CU_ASSERT_EQUAL(first[3], 7);
        CU_ASSERT(first[0] <= first[1] && first[1] <= first[2] &&
                  first[2] < first[3]);
        CU_ASSERT_EQUAL(worst_chunk(g, &bind, 3, first), best_of_all(g, &bind));
        zb_graph_free(g);
    }
}

static void auto_cut_with_more_chunks_than_layers(void)
{
    struct zb_bind bind = {{2, 3}};
    struct zb_graph *g = wide_layers((const int[]){2, 2, 2}, 3);
    int first[9];

    ZBT_OK(zb_cut_auto(g, &bind, 8, first));
    CU_ASSERT_EQUAL(first[0], 0);
    CU_ASSERT_EQUAL(first[7], 2);
    CU_ASSERT_EQUAL(first[8], 3);
    zb_graph_free(g);
}

/* ---- allocation failures ------------------------------------------------- */

static enum zb_status build_and_compile(void)
{
    const int64_t n[] = {H}, heads[] = {B, T, 2, H / 2};
    const struct zb_attn_opts opts = {.causal = 1, .scale = 1,
                                      .key_mask = ZB_G_NONE};
    struct zb_bind max = {{2, 3}};
    struct zb_graph *g;
    struct zb_chunk *c;
    enum zb_status st;
    int x, q;

    ZB_TRY(zb_graph_new(&g));
    x = data3(g, "x");
    zb_g_layer(g, "a");
    x = linear(g, "w0", x);
    zb_g_layer(g, "b");
    q = zb_g_rmsnorm(g, x, zb_g_param(g, "norm", 1, n, &normal), 1e-5);
    q = zb_g_linear(g, q, matrix(g, "qkv", 2 * H, H), ZB_G_NONE, 0);
    q = zb_g_reshape(g, zb_g_slice(g, q, 0, H), 4, heads);
    x = zb_g_add(g, x, zb_g_attention(g, q, q, q, &opts));
    zb_g_output(g, "x", x);
    zb_g_loss(g, x, ZB_G_NONE);
    st = zb_graph_finish(g);
    if (st == ZB_OK) {
        st = zb_chunk_new(g, 1, 2, &max, ZB_RECOMPUTE_NONE, &c);
        if (st == ZB_OK) {
            zb_chunk_free(c);
        }
    }
    zb_graph_free(g);
    return st;
}

static void failing_allocation_unwinds(void)
{
    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = build_and_compile();
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            CU_ASSERT_EQUAL(st, ZB_OK);
            CU_ASSERT(k > 20);
            break;
        }
        CU_ASSERT_EQUAL(st, ZB_ENOMEM);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(wrong_weight_names_layer_and_shapes),
        ZBT_CASE(first_mistake_is_reported),
        ZBT_CASE(bad_arguments_are_refused),
        ZBT_CASE(shapes_that_do_not_fit_are_refused),
        ZBT_CASE(loss_must_be_once_and_last),
        ZBT_CASE(loss_op_inside_model_is_refused),
        ZBT_CASE(too_long_sequence_is_refused),
        ZBT_CASE(uses_are_counted_where_gradients_are),
        ZBT_CASE(every_param_has_a_chunk),
        ZBT_CASE(frozen_model_has_no_backward),
        ZBT_CASE(residual_block_memory_by_hand),
        ZBT_CASE(logits_become_their_gradient),
        ZBT_CASE(packed_slices_need_no_copies),
        ZBT_CASE(empty_chunk_passes_on),
        ZBT_CASE(early_tensor_rides_along),
        ZBT_CASE(flops_of_linear_by_hand),
        ZBT_CASE(uniform_cut_gives_extra_to_the_middle),
        ZBT_CASE(listed_cut_must_sum_up),
        ZBT_CASE(auto_cut_has_least_maximum),
        ZBT_CASE(auto_cut_with_more_chunks_than_layers),
        ZBT_CASE(failing_allocation_unwinds),
    };

    return zbt_run("graph", cases, ZB_COUNT_OF(cases));
}
