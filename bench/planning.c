/* SPDX-License-Identifier: MIT
 *
 * What planning costs: a share of the first 100 steps' time, which must not be
 * more than 5 %.
 *
 *     bench/planning [STEPS [none|selective|full]]
 *
 * For models from tiny to small, stages on one thread each, it times planning
 * as zb_session_new() does it by default (cut and schedule chosen together),
 * and steps on the cpu backend, with the given way to recompute (none).
 * Planning is timed five times, steps STEPS times (5); medians are printed.
 * Exit status 1 when a share is above 5 %.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/graph.h"
#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

#define MAX_TIMES 64
#define N_PLANS 5
#define MOST_SHARE 5.0 /* percent */

struct size {
    const char *width, *ffn, *layers;
    int seq, stages, micro;
};

static const struct size sizes[] = {
    {"16", "24", "7", 16, 2, 4},   {"32", "64", "12", 32, 4, 8},
    {"64", "160", "12", 64, 2, 8}, {"64", "160", "24", 64, 8, 32},
    {"128", "320", "8", 64, 2, 4}, {"256", "640", "8", 64, 4, 8},
};

static enum zb_status make_model(const struct size *z, struct zb_model **m_out)
{
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},
        {"vocab_size", "256", 0},
        {"hidden_size", z->width, 0},
        {"intermediate_size", z->ffn, 0},
        {"num_hidden_layers", z->layers, 0},
        {"num_attention_heads", "4", 0},
        {"tie_word_embeddings", "false", 0},
    };
    const struct zb_model_opts opts = {.max_seq = z->seq, .init_std = -1};

    return zb_model_from_keys(key, ZB_COUNT_OF(key), "bench", &opts, m_out);
}

static enum zb_status time_plans(const struct zb_model *m,
                                 const struct zb_session_opts *o,
                                 double *ms_out)
{
    double ms[N_PLANS];

    for (int i = 0; i < N_PLANS; i++) {
        struct zb_plan_input in;
        struct zb_schedule *s;
        int64_t begin = zb_now_ns();

        ZB_TRY(zb_session_plan(m, o, NULL, &in, &s));
        ms[i] = (double)(zb_now_ns() - begin) / 1e6;
        zb_schedule_free(s);
        zb_plan_input_release(&in);
    }
    *ms_out = zb_median(ms, N_PLANS);
    return ZB_OK;
}

static enum zb_status run_steps(struct zb_session *s,
                                const struct zb_step_input *in, int n,
                                double *ms_out)
{
    struct zb_step_result res = {.loss = 0};
    double ms[MAX_TIMES];

    ZB_TRY(zb_train_step(s, in, 1e-3, &res));
    for (int i = 0; i < n; i++) {
        int64_t begin = zb_now_ns();

        ZB_TRY(zb_train_step(s, in, 1e-3, &res));
        ms[i] = (double)(zb_now_ns() - begin) / 1e6;
    }
    *ms_out = zb_median(ms, (size_t)n);
    return ZB_OK;
}

static enum zb_status time_steps(const struct zb_model *m,
                                 const struct zb_session_opts *o, int n,
                                 double *ms_out)
{
    size_t n_ids = (size_t)(o->max_rows * o->max_seq);
    int32_t *ids = zb_alloc_array(n_ids, sizeof(*ids));
    int64_t *sample = zb_alloc_array((size_t)o->max_rows, sizeof(*sample));
    const void *field[2] = {ids, ids};
    struct zb_step_input in = {.n_rows = o->max_rows,
                               .seq_len = o->max_seq,
                               .field = field,
                               .sample = sample};
    struct zb_session *s = NULL;
    enum zb_status st = ids == NULL || sample == NULL
                            ? ZB_ENOMEM
                            : zb_session_new(m, o, &s);

    for (size_t i = 0; st == ZB_OK && i < n_ids; i++) {
        ids[i] = (int32_t)(i * 7 % 256);
    }
    if (st == ZB_OK) {
        st = run_steps(s, &in, n, ms_out);
    }
    zb_session_free(s);
    zb_free(sample);
    zb_free(ids);
    return st;
}

static enum zb_status one_size(const struct size *z, int n_steps,
                               enum zb_recompute recompute, int *n_bad)
{
    struct zb_session_opts o;
    struct zb_model *m = NULL;
    double plan_ms = 0, step_ms = 0, share;
    enum zb_status st;

    zb_session_opts_init(&o);
    o.n_stages = z->stages;
    o.n_micro = z->micro;
    o.max_rows = z->micro;
    o.max_seq = z->seq;
    o.recompute = recompute;
    ZB_TRY(make_model(z, &m));
    st = time_plans(m, &o, &plan_ms);
    if (st == ZB_OK) {
        st = time_steps(m, &o, n_steps, &step_ms);
    }
    zb_model_free(m);
    ZB_TRY(st);
    share = 100 * plan_ms / (100 * step_ms);
    *n_bad += share > MOST_SHARE;
    printf("%6s %6s %6d %6d %6d %10.2f %10.2f %9.2f\n", z->width, z->layers,
           z->seq, z->stages, z->micro, step_ms, plan_ms, share);
    return ZB_OK;
}

/* ZB_N_RECOMPUTES when there is no such way. */
static enum zb_recompute find_recompute(const char *name)
{
    int i = 0;

    while (i < ZB_N_RECOMPUTES &&
           strcmp(name, zb_recompute_str((enum zb_recompute)i)) != 0) {
        i++;
    }
    return (enum zb_recompute)i;
}

int main(int argc, char **argv)
{
    int n_steps = argc > 1 ? atoi(argv[1]) : 5, n_bad = 0;
    enum zb_recompute recompute = find_recompute(argc > 2 ? argv[2] : "none");

    if (n_steps < 1 || n_steps > MAX_TIMES || recompute == ZB_N_RECOMPUTES) {
        fprintf(stderr,
                "usage: planning [STEPS [none|selective|full]], at most %d\n",
                MAX_TIMES);
        return 2;
    }
    printf("%6s %6s %6s %6s %6s %10s %10s %9s\n", "width", "layers", "seq",
           "stages", "micro", "step ms", "plan ms", "share %");
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        if (one_size(&sizes[i], n_steps, recompute, &n_bad) != ZB_OK) {
            fprintf(stderr, "planning: %s\n", zb_error_text());
            return 1;
        }
    }
    return n_bad > 0;
}
