/* SPDX-License-Identifier: MIT
 *
 * Graphs, cuts and masks beyond the plain models: frozen and unused parameters,
 * a parameter of several stages, empty chunks, padded keys. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 7
#define N_MICRO 3
#define WIDTH 6

static const char *const planner[] = {"zbv", "1f1b", "gpipe"};

/* ---- a graph by hand ----------------------------------------------------- */

/* Six linear layers with an activation. Layers 1 and 4 share a weight, 0 and 3
 * a frozen one, layer 2 names a weight that nothing reads, and what layer 5
 * does with "lost" reaches no loss. */
static struct zb_model *odd_model(void)
{
    const int64_t bth[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), WIDTH};
    const int64_t square[] = {WIDTH, WIDTH}, one[] = {WIDTH};
    static const char *const weight[] = {"cold", "twice", "w2",
                                         "cold", "twice", "w5"};
    struct zb_model *m = NULL;
    struct zb_graph *g;
    int x, target;

    ZBT_OK(zb_graph_new(&g));
    x = zb_g_data(g, "x", ZB_DTYPE_REAL, 3, bth);
    target = zb_g_data(g, "target", ZB_DTYPE_REAL, 3, bth);
    for (int i = 0; i < 6; i++) {
        struct zb_param_opts o = {.init = ZB_INIT_NORMAL,
                                  .std = 0.5,
                                  .is_frozen = i % 3 == 0};
        struct zb_param_opts bias = {.init = ZB_INIT_ZEROS, .no_decay = 1};
        char name[16];

        snprintf(name, sizeof(name), "bias%d", i);
        zb_g_layer(g, name);
        if (i == 2) {
            zb_g_param(g, "unread", 2, square, &o);
        }
        if (i == 5) {
            zb_g_output(g, "aside",
                        zb_g_linear(g, x, zb_g_param(g, "lost", 2, square, &o),
                                    ZB_G_NONE, 0));
        }
        x = zb_g_linear(g, x, zb_g_param(g, weight[i], 2, square, &o),
                        zb_g_param(g, name, 1, one, &bias), 0);
        x = zb_g_act(g, x, ZB_ACT_SILU);
    }
    zb_g_loss(g, zb_g_mse(g, x, target), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 0, 6, &m));
    return m;
}

struct odd_batch {
    zb_real x[N_ROWS * RU_SEQ * WIDTH], target[N_ROWS * RU_SEQ * WIDTH];
    int64_t sample[N_ROWS];
    const void *field[2];
    struct ru_batch b; /* only `in` is used */
};

static void odd_batch_init(struct odd_batch *o)
{
    struct zbt_rng rng = {9};

    memset(o, 0, sizeof(*o));
    for (int i = 0; i < N_ROWS * RU_SEQ * WIDTH; i++) {
        o->x[i] = (zb_real)zbt_rand_in(&rng, -1000, 1000) / 500;
        o->target[i] = (zb_real)zbt_rand_in(&rng, -1000, 1000) / 500;
    }
    o->field[0] = o->x;
    o->field[1] = o->target;
    o->b.in = (struct zb_step_input){.n_rows = N_ROWS,
                                     .seq_len = RU_SEQ,
                                     .field = o->field,
                                     .sample = o->sample};
}

/* Whether a parameter is of those that must not move. */
static int is_still(const struct zb_graph *g, int param)
{
    const char *name = zb_graph_param(g, param).name;

    return strcmp(name, "cold") == 0 || strcmp(name, "unread") == 0 ||
           strcmp(name, "lost") == 0;
}

/* Gradients of still parameters are zero, the others are not. */
static void check_grads(const struct zb_graph *g, const zb_real *grads)
{
    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        int64_t n = zb_shape_elems(&info.shape), n_zero = 0;

        for (int64_t i = 0; i < n; i++) {
            n_zero += *grads++ == 0;
        }
        CU_ASSERT_EQUAL(n_zero, is_still(g, p) ? n : 0);
    }
}

static void check_params(const struct zb_graph *g, const zb_real *before,
                         const zb_real *after)
{
    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        size_t n = (size_t)zb_shape_elems(&info.shape);

        CU_ASSERT_EQUAL(memcmp(before, after, n * sizeof(zb_real)) == 0,
                        is_still(g, p));
        before += n;
        after += n;
    }
}

static void frozen_and_unused_parameters_stay_on_every_layout(void)
{
    struct zb_model *m = odd_model();
    const struct zb_graph *g = zb_model_graph(m);
    zb_real *start = zb_alloc_array(ru_n_elems(m), sizeof(zb_real));
    struct zb_session_opts o = ru_opts(1, N_MICRO, N_ROWS);
    static struct odd_batch b;
    struct ru_result want, have;
    struct zb_session *s = NULL;

    odd_batch_init(&b);
    ZBT_OK(zb_session_new(m, &o, &s));
    ru_get_params(s, start);
    zb_session_free(s);
    ru_train_two_steps(m, &o, &b.b, &want);
    check_grads(g, want.grads);
    check_params(g, start, want.params);
    for (int p = 1; p <= 4; p++) {
        for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
            o = ru_opts(p, N_MICRO, N_ROWS);
            o.planner = planner[k];
            ru_train_two_steps(m, &o, &b.b, &have);
            CU_ASSERT(ru_result_equal(&have, &want));
            ru_result_release(&have);
        }
    }
    ru_result_release(&want);
    zb_free(start);
    zb_model_free(m);
}

/* The gradient of a weight of two stages is that of both uses: it agrees with
 * central differences of the loss. */
static void shared_parameter_has_the_gradient_of_all_uses(void)
{
    struct zb_model *m = odd_model();
    int param = zb_graph_find_param(zb_model_graph(m), "twice");
    struct zb_session_opts o = ru_opts(3, N_MICRO, N_ROWS);
    zb_real w[WIDTH * WIDTH], grad[WIDTH * WIDTH];
    struct zb_step_result res = {.loss = 0};
    static struct odd_batch b;
    struct zb_session *s = NULL;

    o.planner = "1f1b";
    odd_batch_init(&b);
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_forward_backward_step(s, &b.b.in, ZB_RETURN_LOSS, &res));
    ZBT_OK(zb_session_get_grad(s, param, grad));
    ZBT_OK(zb_session_get_param(s, param, w));
    for (int i = 0; i < WIDTH * WIDTH; i += 7) {
        const zb_real h = (zb_real)0.015625, at = w[i];
        double loss[2];

        for (int k = 0; k < 2; k++) {
            w[i] = k ? at - h : at + h;
            ZBT_OK(zb_session_set_param(s, param, w));
            ZBT_OK(zb_run_forward_only(s, &b.b.in, 0, ZB_RETURN_LOSS, &res));
            loss[k] = res.loss;
        }
        w[i] = at;
        CU_ASSERT_DOUBLE_EQUAL((loss[0] - loss[1]) / (2 * (double)h), grad[i],
                               2e-3);
    }
    zb_session_free(s);
    zb_model_free(m);
}

static void parameters_can_be_set_and_read(void)
{
    struct zb_model *m = odd_model();
    int param = zb_graph_find_param(zb_model_graph(m), "cold");
    struct zb_session_opts o = ru_opts(2, N_MICRO, N_ROWS);
    zb_real w[WIDTH * WIDTH], back[WIDTH * WIDTH];
    struct zb_session *s = NULL;

    for (int i = 0; i < WIDTH * WIDTH; i++) {
        w[i] = (zb_real)i / 3;
    }
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_session_set_param(s, param, w));
    ZBT_OK(zb_session_get_param(s, param, back));
    CU_ASSERT_EQUAL(memcmp(w, back, sizeof(w)), 0);
    CU_ASSERT_EQUAL(zb_session_get_param(s, -1, back), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_session_set_param(s, 100, w), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_session_get_grad(s, 100, back), ZB_EINVAL);
    ZBT_OK(zb_session_get_param(s, param, back)); /* still alive */
    zb_session_free(s);
    zb_model_free(m);
}

/* ---- masks --------------------------------------------------------------- */

static double masked_loss(const struct zb_model *m, int p,
                          const struct ru_batch *b, const int32_t *mask)
{
    const void *field[] = {mask, b->ids, b->labels};
    struct zb_session_opts o = ru_opts(p, N_MICRO, N_ROWS);
    struct zb_step_input in = b->in;
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;

    in.field = field;
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_forward_backward_step(s, &in, ZB_RETURN_LOSS, &res));
    ZBT_OK(zb_optimizer_step(s, 1e-3, &res));
    zb_session_free(s);
    return res.loss + res.grad_norm;
}

static double unmasked_loss(const struct ru_batch *b)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(2, N_MICRO, N_ROWS);
    struct ru_result r;
    double sum;

    ru_train_two_steps(m, &o, b, &r);
    sum = r.loss + r.norm;
    ru_result_release(&r);
    zb_model_free(m);
    return sum;
}

/* Row r ends in r % 4 ignored targets: padding, whose tokens must not
 * matter. */
static void padded_keys_do_not_matter(void)
{
    struct zb_model *m = ru_llama_masked();
    int32_t mask[N_ROWS * RU_SEQ];
    struct ru_batch b;
    double want;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int i = 0; i < N_ROWS * RU_SEQ; i++) {
        mask[i] = 1;
    }
    want = unmasked_loss(&b);
    for (int p = 1; p <= 4; p *= 2) {
        CU_ASSERT_EQUAL(masked_loss(m, p, &b, mask), want);
    }
    for (int i = 0; i < N_ROWS * RU_SEQ; i++) {
        mask[i] = b.labels[i] != -100;
    }
    want = masked_loss(m, 2, &b, mask);
    for (int i = 0; i < N_ROWS * RU_SEQ; i++) {
        b.ids[i] = mask[i] ? b.ids[i] : (b.ids[i] + 1) % 64;
    }
    CU_ASSERT_EQUAL(masked_loss(m, 2, &b, mask), want);
    /* Keys in the middle do matter. */
    mask[RU_SEQ + 2] = 0;
    CU_ASSERT_NOT_EQUAL(masked_loss(m, 2, &b, mask), want);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- cuts ---------------------------------------------------------------- */

/* 8 layers on up to 12 stages of 2 chunks: most chunks only pass on. */
static void more_stages_than_layers_give_the_same_bits(void)
{
    struct zb_model *m = ru_gpt2(0.1);

    for (int n_micro = 1; n_micro <= 4; n_micro += 3) {
        struct zb_session_opts o = ru_opts(1, n_micro, N_ROWS);
        struct ru_result want, have;
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
        ru_train_two_steps(m, &o, &b, &want);
        for (size_t k = 0; k < 2 * ZB_COUNT_OF(planner); k++) {
            o = ru_opts(12, n_micro, N_ROWS);
            o.planner = planner[k / 2];
            o.cut = k % 2 ? ZB_CUT_UNIFORM : ZB_CUT_AUTO;
            ru_train_two_steps(m, &o, &b, &have);
            CU_ASSERT(ru_result_equal(&have, &want));
            ru_result_release(&have);
        }
        ru_result_release(&want);
        ru_batch_release(&b);
    }
    zb_model_free(m);
}

static void layers_per_chunk_give_the_same_bits(void)
{
    static const int list[][4] = {
        {0, 6, 0, 0}, {6, 0, 0, 0}, {0, 0, 0, 6}, {1, 2, 3, 0}, {2, 1, 1, 2}};
    static const int wrong[4] = {1, 2, 3, 1};
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(1, N_MICRO, N_ROWS);
    struct ru_result want, have;
    struct zb_session *s = NULL;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ru_train_two_steps(m, &o, &b, &want);
    for (size_t k = 0; k < 2 * ZB_COUNT_OF(list); k++) {
        o = ru_opts(k % 2 ? 4 : 2, N_MICRO, N_ROWS);
        o.planner = k % 2 ? "1f1b" : "zbv";
        o.cut = ZB_CUT_LIST;
        o.layers_per_chunk = list[k / 2];
        ru_train_two_steps(m, &o, &b, &have);
        CU_ASSERT(ru_result_equal(&have, &want));
        ru_result_release(&have);
    }
    o.layers_per_chunk = wrong;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "7"));
    ru_result_release(&want);
    ru_batch_release(&b);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(frozen_and_unused_parameters_stay_on_every_layout),
        ZBT_CASE(shared_parameter_has_the_gradient_of_all_uses),
        ZBT_CASE(parameters_can_be_set_and_read),
        ZBT_CASE(padded_keys_do_not_matter),
        ZBT_CASE(more_stages_than_layers_give_the_same_bits),
        ZBT_CASE(layers_per_chunk_give_the_same_bits),
    };

    return zbt_run("run_graph", cases, ZB_COUNT_OF(cases));
}
