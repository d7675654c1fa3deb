/* SPDX-License-Identifier: MIT
 *
 * What the pipeline costs: two stages on two cores, one thread each.
 *
 *     bench/two_stages [-r ROUNDS] [-w WIDTH] [-l LAYERS] [-t SEQ] [-b ROWS]
 *
 * In one run and in rotation it times, for M = 4 and M = 8 microbatches,
 *   zbv       two stages, zero-bubble V
 *   1f1b      two stages, one forward one backward
 *   replicas  two independent single-stage trainers side by side, one thread
 *             each, M/2 microbatches each: what two cores can do without any
 *             pipeline
 * and prints medians and minima of the forward and backward time of a step and
 * the ratios zbv / 1f1b and replicas / zbv. (A core runs slower when both are
 * busy, so half of a lone thread's time would be no fair measure.)
 *
 * The optimizer's update is left out: it is the same work in all three.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

struct setup {
    int rounds, width, layers, seq, rows; /* rows of one microbatch */
};

enum { ZBV, ONE_F_ONE_B, REPLICA_A, REPLICA_B, N_SESSIONS };

struct contest {
    const struct setup *u;
    int n_micro;
    struct zb_model *model;
    struct zb_session *s[N_SESSIONS];
    int32_t *ids;
    int64_t *sample;
    double *ms[3]; /* zbv, 1f1b, replicas: [rounds] */
};

static enum zb_status make_model(const struct setup *u, struct zb_model **m_out)
{
    char width[16], ffn[16], layers[16], heads[16], seq[16];
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},
        {"vocab_size", "256", 0},
        {"hidden_size", width, 0},
        {"intermediate_size", ffn, 0},
        {"num_hidden_layers", layers, 0},
        {"num_attention_heads", heads, 0},
        {"max_position_embeddings", seq, 0},
    };
    const struct zb_model_opts opts = {.max_seq = u->seq, .init_std = -1};

    snprintf(width, sizeof(width), "%d", u->width);
    snprintf(ffn, sizeof(ffn), "%d", u->width * 8 / 3 / 16 * 16);
    snprintf(layers, sizeof(layers), "%d", u->layers);
    snprintf(heads, sizeof(heads), "%d", u->width / 64);
    snprintf(seq, sizeof(seq), "%d", u->seq);
    return zb_model_from_keys(key, ZB_COUNT_OF(key), "two_stages", &opts,
                              m_out);
}

static enum zb_status open_one(struct contest *c, int which)
{
    struct zb_session_opts o;

    zb_session_opts_init(&o);
    o.backend = "cpu";
    o.n_stages = which < REPLICA_A ? 2 : 1;
    o.n_micro = which < REPLICA_A ? c->n_micro : c->n_micro / 2;
    o.planner = which == ZBV ? "zbv" : "1f1b";
    o.max_rows = (int64_t)o.n_micro * c->u->rows;
    o.max_seq = c->u->seq;
    return zb_session_new(c->model, &o, &c->s[which]);
}

static enum zb_status step(struct contest *c, int which)
{
    const void *field[] = {c->ids, c->ids};
    int n_micro = which < REPLICA_A ? c->n_micro : c->n_micro / 2;
    struct zb_step_input in = {.n_rows = (int64_t)n_micro * c->u->rows,
                               .seq_len = c->u->seq,
                               .field = field,
                               .sample = c->sample};
    struct zb_step_result res = {.loss = 0};

    return zb_forward_backward_step(c->s[which], &in, ZB_RETURN_LOSS, &res);
}

/* Both replicas at once. */
struct replica {
    struct contest *c;
    int which;
    enum zb_status st;
};

static void replica_main(void *arg)
{
    struct replica *r = arg;

    r->st = step(r->c, r->which);
}

static enum zb_status step_replicas(struct contest *c)
{
    struct replica other = {.c = c, .which = REPLICA_B};
    struct zb_thread t;
    enum zb_status st;

    ZB_TRY(zb_thread_start(&t, "replica", replica_main, &other));
    st = step(c, REPLICA_A);
    zb_thread_join(&t);
    return st != ZB_OK ? st : other.st;
}

static enum zb_status time_one(struct contest *c, int which, double *ms_out)
{
    int64_t begin = zb_now_ns();

    ZB_TRY(which == 2 ? step_replicas(c) : step(c, which));
    *ms_out = (double)(zb_now_ns() - begin) * 1e-6;
    return ZB_OK;
}

static enum zb_status measure(struct contest *c)
{
    double warm;

    for (int which = 0; which < 3; which++) {
        ZB_TRY(time_one(c, which, &warm));
        ZB_TRY(time_one(c, which, &warm));
    }
    for (int r = 0; r < c->u->rounds; r++) {
        for (int i = 0; i < 3; i++) {
            int which = (i + r) % 3;

            ZB_TRY(time_one(c, which, &c->ms[which][r]));
        }
    }
    return ZB_OK;
}

/* Costs are in units of a chunk's mean F, and 1f1b has half as many chunks. */
static double planned_time(const struct zb_session *s)
{
    const struct zb_schedule *sched = zb_session_schedule(s);

    return sched->makespan / (sched->n_stage * sched->n_chunk);
}

static void report(struct contest *c)
{
    static const char *const name[3] = {"zbv", "1f1b", "replicas"};
    double med[3];

    for (int i = 0; i < 3; i++) {
        med[i] = zb_median(c->ms[i], (size_t)c->u->rounds);
        printf("M=%d %-8s median %8.2f ms  min %8.2f ms\n", c->n_micro, name[i],
               med[i], c->ms[i][0]);
    }
    printf("M=%d planned bubble: zbv %.3f, 1f1b %.3f; planned zbv/1f1b %.3f\n",
           c->n_micro, zb_session_schedule(c->s[ZBV])->bubble_rate,
           zb_session_schedule(c->s[ONE_F_ONE_B])->bubble_rate,
           planned_time(c->s[ZBV]) / planned_time(c->s[ONE_F_ONE_B]));
    printf("M=%d zbv/1f1b %.3f (minima %.3f)   replicas/zbv %.3f "
           "(minima %.3f)\n",
           c->n_micro, med[0] / med[1], c->ms[0][0] / c->ms[1][0],
           med[2] / med[0], c->ms[2][0] / c->ms[0][0]);
}

static void close_contest(struct contest *c)
{
    for (int i = 0; i < N_SESSIONS; i++) {
        zb_session_free(c->s[i]);
    }
    zb_model_free(c->model);
    for (int i = 0; i < 3; i++) {
        zb_free(c->ms[i]);
    }
    zb_free(c->ids);
    zb_free(c->sample);
}

static enum zb_status open_contest(struct contest *c)
{
    size_t rows = (size_t)c->n_micro * (size_t)c->u->rows;
    size_t n = rows * (size_t)c->u->seq;
    unsigned state = 1;

    c->ids = zb_alloc_array(n, sizeof(*c->ids));
    c->sample = zb_alloc_array(rows, sizeof(*c->sample));
    if (c->ids == NULL || c->sample == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        c->ids[i] = (int32_t)(state >> 24);
    }
    for (int i = 0; i < 3; i++) {
        c->ms[i] = zb_alloc_array((size_t)c->u->rounds, sizeof(double));
        if (c->ms[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    ZB_TRY(make_model(c->u, &c->model));
    for (int i = 0; i < N_SESSIONS; i++) {
        ZB_TRY(open_one(c, i));
    }
    return ZB_OK;
}

static enum zb_status hold(const struct setup *u, int n_micro)
{
    struct contest c = {.u = u, .n_micro = n_micro};
    enum zb_status st = open_contest(&c);

    if (st == ZB_OK) {
        st = measure(&c);
    }
    if (st == ZB_OK) {
        report(&c);
    }
    close_contest(&c);
    return st;
}

int main(int argc, char **argv)
{
    struct setup u = {
        .rounds = 21, .width = 768, .layers = 4, .seq = 128, .rows = 1};
    enum zb_status st;
    int opt;

    while ((opt = getopt(argc, argv, "r:w:l:t:b:")) != -1) {
        int *field = opt == 'r'   ? &u.rounds
                     : opt == 'w' ? &u.width
                     : opt == 'l' ? &u.layers
                     : opt == 't' ? &u.seq
                                  : &u.rows;

        if (opt == '?' || atoi(optarg) < 1) {
            fprintf(stderr, "usage: two_stages [-r rounds] [-w width] "
                            "[-l layers] [-t seq] [-b rows]\n");
            return 2;
        }
        *field = atoi(optarg);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("llama, width %d, %d layers, T=%d, %d rows a microbatch\n", u.width,
           u.layers, u.seq, u.rows);
    st = hold(&u, 4);
    if (st == ZB_OK) {
        st = hold(&u, 8);
    }
    if (st != ZB_OK) {
        fprintf(stderr, "two_stages: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
