/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/costs.h"

#include <math.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

static const struct zb_optim sgd = {.kind = ZB_OPTIM_SGD};
static const struct zb_optim adamw = {.kind = ZB_OPTIM_ADAMW};
static const struct zb_bind bind = {{3, RU_SEQ}};

/* data x [B,8] -> y [B,16] = x W^T + b, loss on y */
static struct zb_graph *linear_graph(int out_features, int in_by_out)
{
    const int64_t x_dim[] = {ZB_DIM(ZB_SYM_BATCH), 8};
    const int64_t t_dim[] = {ZB_DIM(ZB_SYM_BATCH), out_features};
    const int64_t w_dim[] = {in_by_out ? 8 : out_features,
                             in_by_out ? out_features : 8};
    const int64_t b_dim[] = {out_features};
    const struct zb_param_opts opts = {.init = ZB_INIT_NORMAL, .std = 1};
    struct zb_graph *g;
    int x, t, y;

    ZBT_OK(zb_graph_new(&g));
    x = zb_g_data(g, "x", ZB_DTYPE_REAL, 2, x_dim);
    t = zb_g_data(g, "t", ZB_DTYPE_REAL, 2, t_dim);
    zb_g_layer(g, "linear");
    y = zb_g_linear(g, x, zb_g_param(g, "w", 2, w_dim, &opts),
                    zb_g_param(g, "b", 1, b_dim, &opts), in_by_out);
    zb_g_layer(g, "loss");
    zb_g_loss(g, zb_g_mse(g, y, t), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    return g;
}

static struct zb_chunk *layer_of(const struct zb_graph *g, int i)
{
    struct zb_chunk *c;

    ZBT_OK(zb_chunk_new(g, i, i + 1, &bind, ZB_RECOMPUTE_NONE, &c));
    return c;
}

static void estimate_of_a_linear_layer_is_its_formula(void)
{
    struct zb_graph *g = linear_graph(16, 0);
    struct zb_chunk *c = layer_of(g, 0);
    const double r = sizeof(zb_real);
    const double flops = 2.0 * 3 * 8 * 16;
    /* x, W, b read, y written; y and db read; dW read and written. */
    const double f_bytes = r * (3 * 8 + 8 * 16 + 16 + 3 * 16);
    const double dw_bytes = r * (3 * 8 + 3 * 16 + 2 * 8 * 16);
    const double db_bytes = r * (3 * 16 + 2 * 16);
    struct zb_rates slow_work = {{4, 1, 2}, 1e9, 0};
    struct zb_rates slow_bytes = {{1e9, 1e9, 1e9}, 1, 0};
    struct zb_rates launches = {{1e18, 1e18, 1e18}, 1e18, 7};
    double ns[ZB_N_PASSES];

    zb_chunk_estimate(c, &bind, &slow_work, ns);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_F], flops, 1e-3);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_B], 0, 1e-9); /* x gets no gradient */
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_W], flops / 2, 1e-3);
    zb_chunk_estimate(c, &bind, &slow_bytes, ns);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_F], f_bytes, 1e-3);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_W], dw_bytes + db_bytes, 1e-3);
    zb_chunk_estimate(c, &bind, &launches, ns);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_F], 7, 1e-3);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_W], 14, 1e-3);
    zb_chunk_free(c);
    zb_graph_free(g);
}

/* A look-up reads the rows it names, not the whole table. */
static void estimate_of_an_embedding_ignores_unread_rows(void)
{
    struct zb_model *m = ru_llama(); /* 64 x 32 */
    struct zb_chunk *c = layer_of(zb_model_graph(m), 0);
    struct zb_bind one = {{1, 2}};
    struct zb_rates bytes = {{1e18, 1e18, 1e18}, 1, 0};
    double ns[ZB_N_PASSES];

    zb_chunk_estimate(c, &one, &bytes, ns);
    /* ids, two rows read, two written */
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_F], 2 * 4 + 2 * 2 * 32 * sizeof(zb_real),
                           1e-3);
    zb_chunk_free(c);
    zb_model_free(m);
}

static void equal_layers_are_one_kind(void)
{
    struct zb_model *m = ru_llama();
    struct zb_layer_kinds k;

    ZBT_OK(zb_layer_kinds_init(&k, zb_model_graph(m), &bind,
                               ZB_RECOMPUTE_NONE));
    CU_ASSERT_EQUAL(k.n_layers, 8); /* embedding, 6 blocks, head */
    CU_ASSERT_EQUAL(k.n_kinds, 3);
    for (int i = 1; i <= 6; i++) {
        CU_ASSERT_EQUAL(k.kind[i], 1);
    }
    CU_ASSERT_EQUAL(k.count[1], 6);
    CU_ASSERT_EQUAL(k.kind[7], 2);
    zb_layer_kinds_release(&k);
    zb_model_free(m);
}

static uint64_t linear_signature(int out_features, int in_by_out)
{
    struct zb_graph *g = linear_graph(out_features, in_by_out);
    struct zb_chunk *c = layer_of(g, 0);
    uint64_t s = zb_chunk_signature(c);

    zb_chunk_free(c);
    zb_graph_free(g);
    return s;
}

static void signature_changes_with_shape_and_layout(void)
{
    CU_ASSERT_EQUAL(linear_signature(16, 0), linear_signature(16, 0));
    CU_ASSERT_NOT_EQUAL(linear_signature(16, 0), linear_signature(24, 0));
    CU_ASSERT_NOT_EQUAL(linear_signature(8, 0), linear_signature(8, 1));
}

static struct zb_cost_table *llama_costs(const struct zb_model *m,
                                         const struct zb_optim *optim)
{
    struct zb_rates rates = zb_nominal_rates();
    struct zb_cost_table *t;

    ZBT_OK(zb_costs_from_model(zb_model_graph(m), &bind, &rates, optim,
                               ZB_RECOMPUTE_NONE, &t));
    return t;
}

static void sum_of_all_layers_is_sum_of_two_parts(void)
{
    struct zb_model *m = ru_llama();
    struct zb_cost_table *t = llama_costs(m, &adamw);
    struct zb_layer_cost all = zb_costs_sum(t, 0, t->n_layers);
    struct zb_layer_cost a = zb_costs_sum(t, 0, 3);
    struct zb_layer_cost b = zb_costs_sum(t, 3, t->n_layers);
    struct zb_layer_cost none = zb_costs_sum(t, 3, 3);

    CU_ASSERT_DOUBLE_EQUAL(a.f_ns + b.f_ns, all.f_ns, 1e-9 * all.f_ns);
    CU_ASSERT_DOUBLE_EQUAL(a.b_ns + b.b_ns, all.b_ns, 1e-9 * all.b_ns);
    CU_ASSERT_DOUBLE_EQUAL(a.w_ns + b.w_ns, all.w_ns, 1e-9 * all.w_ns);
    CU_ASSERT_EQUAL(none.f_ns + none.b_ns + none.w_ns + none.update_ns, 0);
    CU_ASSERT(all.f_ns > 0 && all.b_ns > 0 && all.w_ns > 0);
    zb_costs_free(t);
    zb_model_free(m);
}

/* adamw reads and writes two moments more than plain sgd: 9 to 5. */
static void update_cost_follows_the_state(void)
{
    struct zb_model *m = ru_llama();
    struct zb_cost_table *a = llama_costs(m, &adamw), *s = llama_costs(m, &sgd);

    for (int i = 0; i < a->n_layers; i++) {
        CU_ASSERT_DOUBLE_EQUAL(a->layer[i].update_ns * 5,
                               s->layer[i].update_ns * 9, 1e-6);
    }
    zb_costs_free(a);
    zb_costs_free(s);
    zb_model_free(m);
}

/* What is stored in 16 bits is read and written as such; an update moves the
 * master as before and writes 2 bytes more. */
static void estimate_of_16_bits_counts_stored_bytes(void)
{
    struct zb_parallel par = {.tp = 1, .sp = 1, .vocab_multiple = 1};
    struct zb_model *m = ru_llama_as(&par, ZB_DTYPE_BF16), *real = ru_llama();
    struct zb_cost_table *t = llama_costs(m, &adamw);
    struct zb_cost_table *want = llama_costs(real, &adamw);
    struct zb_chunk *c = layer_of(zb_model_graph(m), 0);
    struct zb_bind one = {{1, 2}};
    struct zb_rates bytes = {{1e18, 1e18, 1e18}, 1, 0};
    double ns[ZB_N_PASSES];

    zb_chunk_estimate(c, &one, &bytes, ns);
    CU_ASSERT_DOUBLE_EQUAL(ns[ZB_PASS_F], 2 * 4 + 2 * 2 * 32 * 2, 1e-3);
    for (int i = 0; i < t->n_layers; i++) {
        CU_ASSERT_DOUBLE_EQUAL(t->layer[i].update_ns * 36,
                               want->layer[i].update_ns * 38, 1e-6);
    }
    zb_chunk_free(c);
    zb_costs_free(t);
    zb_costs_free(want);
    zb_model_free(m);
    zb_model_free(real);
}

static void message_costs_latency_and_bytes(void)
{
    struct zb_cost_table t = {.message_ns = 5, .bytes_per_ns = 4};

    CU_ASSERT_DOUBLE_EQUAL(zb_costs_message(&t, 400), 105, 1e-9);
    t.bytes_per_ns = INFINITY;
    CU_ASSERT_DOUBLE_EQUAL(zb_costs_message(&t, 400), 5, 1e-9);
}

static void table_without_memory_fails_cleanly(void)
{
    struct zb_model *m = ru_llama();
    struct zb_rates rates = zb_nominal_rates();
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        struct zb_cost_table *t = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_costs_from_model(zb_model_graph(m), &bind, &rates, &adamw,
                                 ZB_RECOMPUTE_NONE, &t);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        if (st == ZB_OK) {
            zb_costs_free(t);
        }
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    zb_model_free(m);
}

static void plan_of_a_run_has_the_costs_of_its_chunks(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(2, 4, 8);
    struct zb_run_plan *p;

    o.cut = ZB_CUT_UNIFORM;
    ZBT_OK(zb_run_plan_new(m, &o, &p));
    for (int v = 0; v < p->n_virtual; v++) {
        struct zb_layer_cost c =
            zb_costs_sum(p->costs, p->first_layer[v], p->first_layer[v + 1]);

        CU_ASSERT_DOUBLE_EQUAL(p->in.f_cost[v] * p->unit_ns, c.f_ns, 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(p->in.b_cost[v] * p->unit_ns, c.b_ns, 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(p->in.w_cost[v] * p->unit_ns, c.w_ns, 1e-6);
    }
    zb_run_plan_free(p);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(estimate_of_a_linear_layer_is_its_formula),
        ZBT_CASE(estimate_of_an_embedding_ignores_unread_rows),
        ZBT_CASE(equal_layers_are_one_kind),
        ZBT_CASE(signature_changes_with_shape_and_layout),
        ZBT_CASE(sum_of_all_layers_is_sum_of_two_parts),
        ZBT_CASE(update_cost_follows_the_state),
        ZBT_CASE(estimate_of_16_bits_counts_stored_bytes),
        ZBT_CASE(message_costs_latency_and_bytes),
        ZBT_CASE(table_without_memory_fails_cleanly),
        ZBT_CASE(plan_of_a_run_has_the_costs_of_its_chunks),
    };

    return zbt_run("costs", cases, ZB_COUNT_OF(cases));
}
