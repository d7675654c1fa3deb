/* SPDX-License-Identifier: MIT
 *
 * What measured costs and the choice of the cut are worth, and whether the plan
 * promised that: a model with a large LM head on two cores, one thread each.
 *
 *     bench/partition [-r ROUNDS] [-w WIDTH] [-l LAYERS] [-v VOCAB] [-t SEQ]
 *                     [-m MICROBATCHES]
 *
 * Both sides are planned with the same measured costs (the second finds them in
 * the cache of the first):
 *   auto     the cut chosen together with the schedule, planner zbv
 *   uniform  the same number of blocks in each chunk, planner get_v_schedule
 * They take turns step by step; medians and minima of forward and backward of a
 * step are printed, and the ratio auto / uniform as planned and as it was. The
 * update is left out.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/log.h"
#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

struct setup {
    int rounds, width, layers, vocab, seq, n_micro;
};

enum { AUTO, UNIFORM, N_SIDES };

struct contest {
    const struct setup *u;
    struct zb_model *model;
    struct zb_session *s[N_SIDES];
    int32_t *ids;
    int64_t *sample;
    double *ms[N_SIDES]; /* [rounds] */
    char dir[64];        /* of the costs */
};

static enum zb_status make_model(const struct setup *u, struct zb_model **m_out)
{
    char vocab[16], width[16], ffn[16], layers[16], heads[16], seq[16];
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},
        {"vocab_size", vocab, 0},
        {"hidden_size", width, 0},
        {"intermediate_size", ffn, 0},
        {"num_hidden_layers", layers, 0},
        {"num_attention_heads", heads, 0},
        {"max_position_embeddings", seq, 0},
        {"tie_word_embeddings", "false", 0},
    };
    const struct zb_model_opts opts = {.max_seq = u->seq, .init_std = -1};

    snprintf(vocab, sizeof(vocab), "%d", u->vocab);
    snprintf(width, sizeof(width), "%d", u->width);
    snprintf(ffn, sizeof(ffn), "%d", u->width * 8 / 3 / 16 * 16);
    snprintf(layers, sizeof(layers), "%d", u->layers);
    snprintf(heads, sizeof(heads), "%d", u->width / 64);
    snprintf(seq, sizeof(seq), "%d", u->seq);
    return zb_model_from_keys(key, ZB_COUNT_OF(key), "partition", &opts, m_out);
}

static enum zb_status open_side(struct contest *c, int side)
{
    struct zb_session_opts o;

    zb_session_opts_init(&o);
    o.backend = "cpu";
    o.n_stages = 2;
    o.n_micro = c->u->n_micro;
    o.max_rows = c->u->n_micro;
    o.max_seq = c->u->seq;
    o.costs = ZB_COSTS_MEASURED;
    o.cost_cache = c->dir;
    o.cut = side == AUTO ? ZB_CUT_AUTO : ZB_CUT_UNIFORM;
    o.planner = side == AUTO ? "zbv" : "get_v_schedule";
    ZB_TRY(zb_session_new(c->model, &o, &c->s[side]));
    printf("%s:\n", side == AUTO ? "auto" : "uniform");
    zb_session_print_costs(c->s[side], stdout);
    return ZB_OK;
}

static enum zb_status time_step(struct contest *c, int side, double *ms_out)
{
    const void *field[] = {c->ids, c->ids};
    struct zb_step_input in = {.n_rows = c->u->n_micro,
                               .seq_len = c->u->seq,
                               .field = field,
                               .sample = c->sample};
    struct zb_step_result res = {.loss = 0};
    int64_t begin = zb_now_ns();

    ZB_TRY(zb_forward_backward_step(c->s[side], &in, ZB_RETURN_LOSS, &res));
    *ms_out = (double)(zb_now_ns() - begin) * 1e-6;
    return ZB_OK;
}

static enum zb_status measure(struct contest *c)
{
    double warm;

    for (int i = 0; i < 2 * N_SIDES; i++) {
        ZB_TRY(time_step(c, i % N_SIDES, &warm));
    }
    for (int r = 0; r < c->u->rounds; r++) {
        for (int i = 0; i < N_SIDES; i++) {
            int side = (i + r) % N_SIDES;

            ZB_TRY(time_step(c, side, &c->ms[side][r]));
        }
    }
    return ZB_OK;
}

static void report(struct contest *c)
{
    static const char *const name[N_SIDES] = {"auto", "uniform"};
    double med[N_SIDES], plan[N_SIDES], promised, is, least;

    for (int i = 0; i < N_SIDES; i++) {
        med[i] = zb_median(c->ms[i], (size_t)c->u->rounds);
        plan[i] = zb_session_planned_ns(c->s[i]) * 1e-6;
        printf("%-8s planned %8.2f ms  median %8.2f ms (%+.1f %%)  min %8.2f "
               "ms\n",
               name[i], plan[i], med[i], 100 * (med[i] / plan[i] - 1),
               c->ms[i][0]);
        zb_session_print_cost_errors(c->s[i], stdout);
    }
    promised = plan[AUTO] / plan[UNIFORM];
    is = med[AUTO] / med[UNIFORM];
    least = c->ms[AUTO][0] / c->ms[UNIFORM][0];
    printf("auto/uniform: planned %.3f, medians %.3f (%+.1f %%), minima %.3f "
           "(%+.1f %%)\n",
           promised, is, 100 * (is / promised - 1), least,
           100 * (least / promised - 1));
}

static void close_contest(struct contest *c)
{
    char command[96];

    for (int i = 0; i < N_SIDES; i++) {
        zb_session_free(c->s[i]);
        zb_free(c->ms[i]);
    }
    zb_model_free(c->model);
    zb_free(c->ids);
    zb_free(c->sample);
    snprintf(command, sizeof(command), "rm -r %s", c->dir);
    if (c->dir[0] != '\0' && system(command) != 0) {
        fprintf(stderr, "partition: %s stays\n", c->dir);
    }
}

static enum zb_status open_contest(struct contest *c)
{
    size_t n = (size_t)c->u->n_micro * (size_t)c->u->seq;
    unsigned state = 1;

    snprintf(c->dir, sizeof(c->dir), "/tmp/partition-XXXXXX");
    if (mkdtemp(c->dir) == NULL) {
        c->dir[0] = '\0';
        return zb_fail(ZB_EIO, "no temporary folder");
    }
    c->ids = zb_alloc_array(n, sizeof(*c->ids));
    c->sample = zb_alloc_array((size_t)c->u->n_micro, sizeof(*c->sample));
    if (c->ids == NULL || c->sample == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        c->ids[i] = (int32_t)((state >> 8) % (unsigned)c->u->vocab);
    }
    for (int i = 0; i < N_SIDES; i++) {
        c->ms[i] = zb_alloc_array((size_t)c->u->rounds, sizeof(double));
        if (c->ms[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    ZB_TRY(make_model(c->u, &c->model));
    ZB_TRY(open_side(c, AUTO));
    return open_side(c, UNIFORM);
}

static enum zb_status hold(const struct setup *u)
{
    struct contest c = {.u = u};
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

static int *option(struct setup *u, int opt)
{
    switch (opt) {
    case 'r':
        return &u->rounds;
    case 'w':
        return &u->width;
    case 'l':
        return &u->layers;
    case 'v':
        return &u->vocab;
    case 't':
        return &u->seq;
    case 'm':
        return &u->n_micro;
    default:
        return NULL;
    }
}

int main(int argc, char **argv)
{
    struct setup u = {.rounds = 21,
                      .width = 384,
                      .layers = 6,
                      .vocab = 16384,
                      .seq = 64,
                      .n_micro = 8};
    double load[1] = {0};
    enum zb_status st;
    int opt;

    while ((opt = getopt(argc, argv, "r:w:l:v:t:m:")) != -1) {
        int *field = option(&u, opt);

        if (field == NULL || atoi(optarg) < 1) {
            fprintf(stderr,
                    "usage: partition [-r rounds] [-w width] [-l layers] "
                    "[-v vocab] [-t seq] [-m microbatches]\n");
            return 2;
        }
        *field = atoi(optarg);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)getloadavg(load, 1);
    printf("llama, width %d, %d layers, vocabulary %d, T=%d, %d microbatches; "
           "load %.1f\n",
           u.width, u.layers, u.vocab, u.seq, u.n_micro, load[0]);
    st = hold(&u);
    if (st != ZB_OK) {
        fprintf(stderr, "partition: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
