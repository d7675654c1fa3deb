/* SPDX-License-Identifier: MIT
 *
 * How many kernels, products of a library and copies a training step enqueues
 * on each stage's device, by stream, and how long a step takes.
 *
 *     bench/launches [-b BACKEND] [-g GPU,GPU,...] [-p PLANNER] [-s STAGES]
 *                    [-m MICROBATCHES] [-l LAYERS] [-w WIDTH] [-n STEPS]
 *
 * A llama of LAYERS layers of WIDTH, sequences of 64. The counts are those of
 * the last of STEPS steps; the time is their median without the first.
 * tests/fakecuda/launches is the same program on emulated GPUs.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

enum { SEQ = 64, VOCAB = 512, MAX_GPUS = 16, MAX_STEPS = 1000 };

struct setup {
    const char *backend, *planner;
    int stages, micro, layers, width, steps;
    int gpus[MAX_GPUS], n_gpus;
};

static enum zb_status make_model(const struct setup *u, struct zb_model **m_out)
{
    char width[16], inner[16], layers[16];
    const struct zb_model_key key[] = {
        {"model_type", "llama", 0},       {"vocab_size", "512", 0},
        {"hidden_size", width, 0},        {"intermediate_size", inner, 0},
        {"num_hidden_layers", layers, 0}, {"num_attention_heads", "4", 0},
        {"max_position_embeddings", "64", 0},
    };
    const struct zb_model_opts opts = {.max_seq = SEQ, .init_std = -1};

    snprintf(width, sizeof(width), "%d", u->width);
    snprintf(inner, sizeof(inner), "%d", 3 * u->width);
    snprintf(layers, sizeof(layers), "%d", u->layers);
    return zb_model_from_keys(key, ZB_COUNT_OF(key), "launches", &opts, m_out);
}

static enum zb_status time_steps(const struct setup *u, struct zb_session *s)
{
    size_t n = (size_t)u->micro * SEQ;
    int32_t *ids = zb_alloc_array(n, sizeof(*ids));
    int64_t *sample = zb_alloc_array((size_t)u->micro, sizeof(*sample));
    const void *field[] = {ids, ids};
    const struct zb_step_input in = {
        .n_rows = u->micro, .seq_len = SEQ, .field = field, .sample = sample};
    double ms[MAX_STEPS];
    enum zb_status st = ids == NULL || sample == NULL ? ZB_ENOMEM : ZB_OK;

    for (size_t i = 0; st == ZB_OK && i < n; i++) {
        ids[i] = (int32_t)(i * 7 % VOCAB);
    }
    for (int i = 0; st == ZB_OK && i < u->steps; i++) {
        struct zb_step_result res = {.loss = 0};
        int64_t begin = zb_now_ns();

        st = zb_train_step(s, &in, 1e-3, &res);
        ms[i] = (double)(zb_now_ns() - begin) * 1e-6;
    }
    if (st == ZB_OK) {
        printf("%s, %s, %d stages, %d microbatches, %d layers of %d: %.2f ms a "
               "step\n",
               zb_session_backend(s), u->planner, u->stages, u->micro,
               u->layers, u->width, zb_median(ms + 1, (size_t)u->steps - 1));
        zb_session_print_launches(s, stdout);
    }
    zb_free(sample);
    zb_free(ids);
    return st;
}

static enum zb_status run(const struct setup *u)
{
    struct zb_model *model = NULL;
    struct zb_session *s = NULL;
    struct zb_session_opts o;
    enum zb_status st = make_model(u, &model);

    zb_session_opts_init(&o);
    o.backend = u->backend;
    o.planner = u->planner;
    o.gpus = u->n_gpus > 0 ? u->gpus : NULL;
    o.n_stages = u->stages;
    o.n_micro = u->micro;
    o.max_rows = u->micro;
    o.max_seq = SEQ;
    if (st == ZB_OK) {
        st = zb_session_new(model, &o, &s);
    }
    if (st == ZB_OK) {
        st = time_steps(u, s);
    }
    zb_session_free(s);
    zb_model_free(model);
    return st;
}

/* "0,1,0" */
static int read_gpus(const char *text, struct setup *u)
{
    char *end;

    for (;; text = end + 1) {
        if (u->n_gpus == MAX_GPUS) {
            return -1;
        }
        u->gpus[u->n_gpus++] = (int)strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0')) {
            return -1;
        }
        if (*end == '\0') {
            return 0;
        }
    }
}

static int read_options(int argc, char **argv, struct setup *u)
{
    const struct {
        char letter;
        int *value;
    } number[] = {{'s', &u->stages},
                  {'m', &u->micro},
                  {'l', &u->layers},
                  {'w', &u->width},
                  {'n', &u->steps}};
    int c;

    while ((c = getopt(argc, argv, "b:g:p:s:m:l:w:n:")) != -1) {
        size_t i = 0;

        while (i < ZB_COUNT_OF(number) && number[i].letter != c) {
            i++;
        }
        if (i < ZB_COUNT_OF(number)) {
            *number[i].value = atoi(optarg);
        } else if (c == 'b') {
            u->backend = optarg;
        } else if (c == 'p') {
            u->planner = optarg;
        } else if (c != 'g' || read_gpus(optarg, u) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < ZB_COUNT_OF(number); i++) {
        if (*number[i].value < 1) {
            return -1;
        }
    }
    return u->steps < 2 || u->steps > MAX_STEPS ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct setup u = {.backend = "auto",
                      .planner = "zbv",
                      .stages = 1,
                      .micro = 8,
                      .layers = 4,
                      .width = 64,
                      .steps = 6};

    if (read_options(argc, argv, &u) != 0) {
        fprintf(stderr, "launches: see the head of bench/launches.c\n");
        return 2;
    }
    if (run(&u) != ZB_OK) {
        fprintf(stderr, "launches: %s\n", zb_error_text());
        return 1;
    }
    return 0;
}
