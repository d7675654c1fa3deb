/* SPDX-License-Identifier: MIT
 *
 * Grids of devices beside their results (test_run_layouts.c): shards, memory,
 * batches that do not divide, lengths that change, failures. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zb/thread.h"
#include "zbt.h"

#define LONGEST_S 5.0

static struct zb_session_opts grid_opts(int pp, int dp, int n_micro,
                                        int64_t rows)
{
    struct zb_session_opts o = ru_opts(pp, n_micro, rows);

    o.n_dp = dp;
    o.optim.eps = 1e-4;
    return o;
}

/* ---- shards ---------------------------------------------------------------- */

/* As the reference pads: ten elements on four ranks are 3, 3, 3 and 1. */
static void shards_are_equal_but_for_the_last(void)
{
    static const int64_t want[] = {3, 3, 3, 1};
    int64_t first, n;

    for (int i = 0; i < 4; i++) {
        zb_shard_range(10, 1, 4, i, &first, &n);
        CU_ASSERT_EQUAL(first, 3 * i);
        CU_ASSERT_EQUAL(n, want[i]);
    }
    zb_shard_range(2, 1, 4, 3, &first, &n); /* all padding */
    CU_ASSERT_EQUAL(n, 0);
}

static void shards_cover_all_once(void)
{
    struct zbt_rng rng = {5};

    for (int i = 0; i < 1000; i++) {
        int64_t n = zbt_rand_in(&rng, 0, 5000), at = 0;
        int64_t align = (int64_t)1 << zbt_rand_in(&rng, 0, 7);
        int n_shards = (int)zbt_rand_in(&rng, 1, 20);

        for (int k = 0; k < n_shards; k++) {
            int64_t first, count;

            zb_shard_range(n, align, n_shards, k, &first, &count);
            CU_ASSERT_EQUAL_FATAL(first, at);
            CU_ASSERT(first % align == 0 || count == 0);
            at += count;
        }
        CU_ASSERT_EQUAL(at, n);
    }
}

/* ---- memory ------------------------------------------------------------------ */

static size_t part_bytes(const struct zb_session *s, int stage,
                         const char *part)
{
    const char *name;
    size_t bytes;

    for (int i = 0; (name = zb_session_memory_part(s, stage, i, &bytes)) !=
                    NULL;
         i++) {
        if (strcmp(name, part) == 0) {
            return bytes;
        }
    }
    CU_FAIL("no such part of memory");
    return 0;
}

static void optimizer_state_falls_with_ranks(void)
{
    struct zb_model *m = ru_llama();
    size_t whole[2] = {0, 0};

    for (int dp = 1; dp <= 8; dp *= 2) {
        struct zb_session_opts o = grid_opts(2, dp, 2, 16);
        struct zb_session *s = NULL;

        o.cut = ZB_CUT_UNIFORM;
        ZBT_OK(zb_session_new(m, &o, &s));
        for (int stage = 0; stage < 2; stage++) {
            size_t bytes = part_bytes(s, stage, "optimizer");
            struct zb_buckets *b = &s->plan->layout[stage].buckets;
            size_t padding =
                (size_t)b->n * 2 * ZB_SHARD_ALIGN * sizeof(zb_real);

            whole[stage] = dp == 1 ? bytes : whole[stage];
            CU_ASSERT(bytes >= whole[stage] / (size_t)dp);
            CU_ASSERT(bytes <= whole[stage] / (size_t)dp + padding);
            CU_ASSERT_EQUAL(zb_session_planned_bytes(s, stage),
                            zb_session_allocated_bytes(s, stage));
        }
        zb_session_free(s);
    }
    zb_model_free(m);
}

/* ---- batches -------------------------------------------------------------------- */

static double loss_of(struct zb_session *s, const struct ru_batch *b,
                      int n_micro)
{
    struct zb_step_result res = {.loss = 0};

    ZBT_OK(zb_run_forward_only(s, &b->in, n_micro, ZB_RETURN_LOSS, &res));
    return res.loss;
}

/* The last batch of an evaluation: some replicas have no row. */
static void ragged_batches_evaluate_alike(void)
{
    struct zb_model *m = ru_gpt2(0);
    struct zb_session_opts one = grid_opts(1, 1, 8, 8);
    struct zb_session_opts many = grid_opts(2, 4, 2, 8);
    struct zb_session *a = NULL, *b = NULL;

    ZBT_OK(zb_session_new(m, &one, &a));
    ZBT_OK(zb_session_new(m, &many, &b));
    for (int64_t rows = 1; rows <= 8; rows++) {
        struct ru_batch batch;
        int n_micro = rows < 2 ? 1 : 2;

        ru_batch_init(&batch, rows, RU_SEQ, (unsigned long long)rows);
        CU_ASSERT_DOUBLE_EQUAL(loss_of(a, &batch, (int)rows),
                               loss_of(b, &batch, n_micro), 1e-6);
        ru_batch_release(&batch);
    }
    zb_session_free(a);
    zb_session_free(b);
    zb_model_free(m);
}

/* 16, 17, 5 and 16 tokens in turn, training and evaluation mixed: stages that
 * cache the sizes of messages see what one device sees. */
static void changing_lengths_give_the_same_losses(void)
{
    static const int64_t len[] = {16, 17, 5, 16};
    struct zb_model *m = ru_llama();
    struct zb_session_opts one = grid_opts(1, 1, 4, 8);
    struct zb_session_opts many = grid_opts(4, 1, 4, 8);
    struct zb_session *a = NULL, *b = NULL;

    one.max_seq = many.max_seq = 17;
    many.has_metadata_cache = 1;
    ZBT_OK(zb_session_new(m, &one, &a));
    ZBT_OK(zb_session_new(m, &many, &b));
    for (size_t i = 0; i < 3 * ZB_COUNT_OF(len); i++) {
        struct zb_step_result x = {.loss = 0}, y = {.loss = 0};
        struct ru_batch batch;

        ru_batch_init(&batch, 8, len[i % ZB_COUNT_OF(len)], i);
        if (i % 3 == 1) {
            CU_ASSERT_EQUAL(loss_of(a, &batch, 4), loss_of(b, &batch, 4));
        } else {
            ZBT_OK(zb_train_step(a, &batch.in, 1e-2, &x));
            ZBT_OK(zb_train_step(b, &batch.in, 1e-2, &y));
            CU_ASSERT_EQUAL(x.loss, y.loss);
            CU_ASSERT_EQUAL(x.grad_norm, y.grad_norm);
        }
        ru_batch_release(&batch);
    }
    zb_session_free(a);
    zb_session_free(b);
    zb_model_free(m);
}

/* The loss sum of rows [first, first + n) when only `len` tokens are given. */
static double sum_alone(struct zb_session *s, const struct ru_batch *b,
                        int64_t first, int64_t n, int64_t len)
{
    struct zb_step_result res = {.loss = 0};
    struct ru_batch part;

    ru_batch_init(&part, n, len, 1);
    for (int64_t r = 0; r < n; r++) {
        memcpy(part.ids + r * len, b->ids + (first + r) * b->seq_len,
               (size_t)len * sizeof(*part.ids));
        memcpy(part.labels + r * len, b->labels + (first + r) * b->seq_len,
               (size_t)len * sizeof(*part.labels));
    }
    ZBT_OK(zb_run_forward_only(s, &part.in, 1, ZB_RETURN_LOSS, &res));
    ru_batch_release(&part);
    return res.loss_sum[0];
}

/* Each microbatch of a padded batch has a length of its own. */
static void microbatches_of_own_lengths_equal_batches_alone(void)
{
    static const int64_t len[] = {12, 3, 7, 1};
    static const int grid[][2] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}};
    struct zb_model *m = ru_llama();
    struct ru_batch b;
    double want = 0, norm = 0;

    ru_batch_init(&b, 8, RU_SEQ, 4);
    b.in.micro_len = len;
    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        struct zb_session_opts o =
            grid_opts(grid[i][0], grid[i][1], 4 / grid[i][1], 8);
        struct zb_step_result res = {.loss = 0};
        struct zb_session *s = NULL;

        ZBT_OK(zb_session_new(m, &o, &s));
        for (int k = 0; i == 0 && k < 4; k++) {
            want += sum_alone(s, &b, 2 * k, 2, len[k]);
        }
        ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
        norm = i == 0 ? res.grad_norm : norm;
        CU_ASSERT_EQUAL(res.loss_sum[0], want);
        CU_ASSERT_DOUBLE_EQUAL(res.grad_norm, norm,
                               grid[i][1] == 1 ? 0 : 1e-6 * norm);
        zb_session_free(s);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

static void length_beyond_the_row_is_refused(void)
{
    static const int64_t len[] = {13, 1, 1, 1};
    struct zb_session_opts o = grid_opts(1, 1, 4, 8);
    struct zb_model *m = ru_llama();
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    struct ru_batch b;

    ru_batch_init(&b, 8, RU_SEQ, 4);
    b.in.micro_len = len;
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(zb_train_step(s, &b.in, 1e-2, &res), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "microbatch 0"));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- what ranks have ---------------------------------------------------------------- */

/* z = b (a x) + c y with b = (3, 4) held fixed, x = 1, y = 12: the gradient of a
 * is (3, 4), of c it is 12. a and b are split over two ranks, c is whole on
 * each. */
static struct zb_model *norm_of_13(int tp)
{
    const struct zb_parallel par = {.tp = tp, .sp = 1, .vocab_multiple = 1};
    const int64_t bt1[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), 1};
    const int64_t by_row[] = {2, 1}, by_col[] = {1, 2}, one[] = {1, 1};
    struct zb_param_opts a = {.init = ZB_INIT_ONES,
                              .split = {.dim = 0, .n_parts = 1, .size = {2},
                                        .unit = {2}}};
    struct zb_param_opts b = a, c = {.init = ZB_INIT_ONES};
    struct zb_model *m = NULL;
    struct zb_graph *g;
    int x, y, z;

    b.split.dim = 1;
    b.is_frozen = 1;
    ZBT_OK(zb_graph_new_parallel(&par, &g));
    x = zb_g_data(g, "x", ZB_DTYPE_REAL, 3, bt1);
    y = zb_g_data(g, "y", ZB_DTYPE_REAL, 3, bt1);
    zb_g_layer(g, "all");
    z = zb_g_linear(g, x, zb_g_param(g, "a", 2, by_row, &a), ZB_G_NONE, 0);
    z = zb_g_linear(g, z, zb_g_param(g, "b", 2, by_col, &b), ZB_G_NONE, 0);
    y = zb_g_linear(g, y, zb_g_param(g, "c", 2, one, &c), ZB_G_NONE, 0);
    zb_g_loss(g, zb_g_add(g, z, y), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 0, 1, &m));
    return m;
}

static void norm_counts_shards_and_copies_once(void)
{
    const zb_real x = 1, y = 12, b[] = {3, 4};
    const void *field[] = {&x, &y};
    const int64_t sample = 0;
    const struct zb_step_input in = {
        .n_rows = 1, .seq_len = 1, .field = field, .sample = &sample};

    for (int tp = 1; tp <= 2; tp++) {
        struct zb_model *m = norm_of_13(tp);
        const struct zb_graph *g = zb_model_graph(m);
        struct zb_session_opts o = grid_opts(1, 1, 1, 1);
        struct zb_step_result res = {.loss = 0};
        struct zb_session *s = NULL;
        zb_real grad[2];

        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_session_set_param(s, zb_graph_find_param(g, "b"), b));
        ZBT_OK(zb_forward_backward_step(s, &in, ZB_RETURN_LOSS, &res));
        CU_ASSERT_EQUAL(res.loss, 3 + 4 + 12);
        ZBT_OK(zb_session_get_grad(s, zb_graph_find_param(g, "a"), grad));
        CU_ASSERT(grad[0] == 3 && grad[1] == 4);
        ZBT_OK(zb_session_get_grad(s, zb_graph_find_param(g, "c"), grad));
        CU_ASSERT_EQUAL(grad[0], 12);
        ZBT_OK(zb_optimizer_step(s, 0, &res));
        CU_ASSERT_EQUAL(res.grad_norm, 13);
        zb_session_free(s);
        zb_model_free(m);
    }
}

static enum zb_status do_settle(struct zb_worker *w, void *arg)
{
    (void)w, (void)arg;
    return ZB_OK;
}

/* Whether a device has the same values as the first of those that hold the same
 * shards. Their memory is the host's. */
static int equals_first(const struct zb_session *s, const struct zb_worker *w)
{
    const struct zb_run_plan *p = s->plan;

    for (int i = 0; i < w->n_mine; i++) {
        int param = w->mine[i];
        int n_copies = zb_graph_param(p->g, param).n_copies;
        const struct zb_worker *first =
            &s->worker[zb_device_of(p, w->stage, w->tp / n_copies * n_copies)];

        if (memcmp(w->value[param], first->value[param],
                   zb_stored_bytes(p, zb_param_elems(p, param))) != 0) {
            return 0;
        }
    }
    return 1;
}

static void replicas_are_equal_after_every_step(void)
{
    static const struct zb_parallel par = {
        .tp = 2, .sp = 2, .mode = ZB_SEQ_RING, .vocab_multiple = 8};
    struct zb_model *m = ru_llama_on(&par);
    struct zb_session_opts o = grid_opts(2, 2, 2, 8);
    struct zb_session *s = NULL;
    struct ru_batch b;

    o.backend = "cpu"; /* whose memory can be looked at */
    o.p2p = ZB_P2P_AUTO;
    ru_batch_init(&b, 8, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int step = 0; step < 5; step++) {
        struct zb_step_result res = {.loss = 0};

        ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
        ZBT_OK(zb_session_each(s, do_settle, NULL));
        for (int i = 0; i < s->plan->n_devices; i++) {
            CU_ASSERT(equals_first(s, &s->worker[i]));
        }
    }
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- failures --------------------------------------------------------------------- */

static void stale_gradients_are_refused(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = grid_opts(1, 2, 2, 4);
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    size_t n = ru_n_elems(m);
    zb_real *grad = zb_alloc_array(n, sizeof(*grad));
    struct ru_batch b;

    ru_batch_init(&b, 4, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
    CU_ASSERT_EQUAL(zb_session_get_grad(s, 0, grad), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_forward_backward_step(s, &b.in, 0, &res), ZB_EINVAL);
    ZBT_OK(zb_zero_grad(s));
    ZBT_OK(zb_forward_backward_step(s, &b.in, 0, &res));
    ZBT_OK(zb_session_get_grad(s, 0, grad));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_free(grad);
    zb_model_free(m);
}

/* The device dies inside its k-th collective of a kind; 0 when two steps have
 * not so many. */
static int fail_one(const struct zb_model *m, const struct ru_batch *b, int dp,
                    int device, enum zb_group_kind kind, int k, int phase)
{
    struct zb_session_opts o = grid_opts(2, dp, 2, 8);
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    int64_t live = zb_mem_live(), begin;
    enum zb_status st = ZB_OK;
    char want[64];

    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(zb_session_fail_coll(s, device, kind, k, phase), 1);
    begin = zb_now_ns();
    for (int i = 0; i < 2 && st == ZB_OK; i++) {
        st = zb_train_step(s, &b->in, 1e-2, &res);
    }
    if (st != ZB_OK) {
        snprintf(want, sizeof(want), "device %d, stage %d", device,
                 device / s->plan->n_columns);
        CU_ASSERT_EQUAL(st, ZB_EDEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), want));
        CU_ASSERT_EQUAL(zb_train_step(s, &b->in, 1e-2, &res), ZB_EABORT);
    }
    zb_session_free(s);
    CU_ASSERT((double)(zb_now_ns() - begin) * 1e-9 < LONGEST_S);
    CU_ASSERT_EQUAL(zb_mem_live(), live);
    return st != ZB_OK;
}

/* In each phase, on each device of a grid of two stages and two ranks, every
 * `stride`-th collective of a kind; `least` of them are there. */
static void die_in_all(const struct zb_parallel *par, int dp,
                       enum zb_group_kind kind, int stride, int least)
{
    struct zb_model *m = ru_llama_on(par);
    struct ru_batch b;

    ru_batch_init(&b, 8, RU_SEQ, 1);
    for (int i = 0; i < 4 * 3; i++) {
        int n_failed = 0;

        for (int k = 1 + i % stride;
             fail_one(m, &b, dp, i % 4, kind, k, i / 4); k += stride) {
            n_failed++;
        }
        CU_ASSERT(n_failed >= least);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

static void death_in_a_collective_of_replicas_ends_the_run(void)
{
    static const struct zb_parallel par = {
        .tp = 1, .sp = 1, .vocab_multiple = 1};

    die_in_all(&par, 2, ZB_GROUP_REDUCE, 1, 2);
    die_in_all(&par, 2, ZB_GROUP_GATHER, 1, 2);
}

static void death_in_a_collective_of_a_pass_ends_the_run(void)
{
    static const struct zb_parallel par[] = {
        {.tp = 2, .sp = 1, .vocab_multiple = 8},
        {.tp = 2, .sp = 1, .mode = ZB_SEQ_SPLIT_GATHER, .vocab_multiple = 8},
        {.tp = 1, .sp = 2, .mode = ZB_SEQ_ALL_TO_ALL, .vocab_multiple = 8},
        {.tp = 1, .sp = 2, .mode = ZB_SEQ_RING, .vocab_multiple = 8},
    };
    int stride = zbt_is_long() ? 1 : 17;

    for (size_t i = 0; i < ZB_COUNT_OF(par); i++) {
        die_in_all(&par[i], 1, par[i].tp > 1 ? ZB_GROUP_TP : ZB_GROUP_SP,
                   stride, 1);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(shards_are_equal_but_for_the_last),
        ZBT_CASE(shards_cover_all_once),
        ZBT_CASE(optimizer_state_falls_with_ranks),
        ZBT_CASE(ragged_batches_evaluate_alike),
        ZBT_CASE(changing_lengths_give_the_same_losses),
        ZBT_CASE(microbatches_of_own_lengths_equal_batches_alone),
        ZBT_CASE(length_beyond_the_row_is_refused),
        ZBT_CASE(norm_counts_shards_and_copies_once),
        ZBT_CASE(replicas_are_equal_after_every_step),
        ZBT_CASE(stale_gradients_are_refused),
        ZBT_CASE(death_in_a_collective_of_replicas_ends_the_run),
        ZBT_CASE(death_in_a_collective_of_a_pass_ends_the_run),
    };

    return zbt_run("run_grid", cases, ZB_COUNT_OF(cases));
}
