/* SPDX-License-Identifier: MIT
 *
 * What models write: the tokens that transformers gives for the golden models,
 * on any layout, and the probabilities of sampled ones (tests/golden/
 * make_generate.py). */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_rig.h"
#include "run_util.h"
#include "zb/generate.h"
#include "zb/mem.h"
#include "zbt.h"

#define MAX_TOKENS 16
#define N_DRAWS 20000

static const struct ru_grid alone = {1, 1, 1, 1, ZB_SEQ_WHOLE};
static const struct ru_grid staged = {2, 1, 1, 1, ZB_SEQ_WHOLE};

static const struct zb_sampling greedy = {.temperature = 0, .top_p = 1};

static struct zb_st_file *open_golden(void)
{
    struct zb_st_file *f = NULL;

    ZBT_OK(
        zb_st_open(zbt_source_path("tests/golden/generate.safetensors"), &f));
    return f;
}

/* A tensor of ints, at most MAX_TOKENS; how many there are. */
static int64_t read_ids(const struct zb_st_file *f, const char *name,
                        int32_t *ids)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);

    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT_FATAL(t->dims[0] <= MAX_TOKENS);
    ZBT_OK(zb_st_read_i32(f, t, ids, t->dims[0]));
    return t->dims[0];
}

static struct zb_session *new_session(const struct golden *d,
                                      const struct zb_model *m,
                                      const struct ru_grid *g)
{
    struct zb_session_opts o = ru_grid_opts(g, 4);
    struct zb_session *s = NULL;

    o.max_seq = MAX_TOKENS;
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        ZBT_OK(zb_session_set_param(s, p, d->params[p]));
    }
    return s;
}

/* ---- the tokens of transformers ------------------------------------------ */

static void expect_ids(struct zb_session *s, const struct zb_st_file *f,
                       const char *prompt, const char *want_name, int64_t n_max)
{
    int32_t ids[MAX_TOKENS], want[MAX_TOKENS];
    int64_t n_prompt = read_ids(f, prompt, ids);
    int64_t n_want = read_ids(f, want_name, want), n = 0;

    ZBT_OK(zb_generate(s, &greedy, n_prompt, n_max, ids, &n));
    CU_ASSERT_EQUAL_FATAL(n, n_want);
    CU_ASSERT_EQUAL(memcmp(ids, want, (size_t)n * sizeof(*ids)), 0);
}

static void check_model(const struct zb_st_file *f, const char *name,
                        const struct ru_grid *g)
{
    const struct zb_parallel par = {
        .tp = g->tp, .sp = g->sp, .mode = g->mode, .vocab_multiple = 32};
    char prompt[64], want[64];
    struct golden d;
    struct zb_session *s;

    snprintf(prompt, sizeof(prompt), "%s.prompt", name);
    snprintf(want, sizeof(want), "%s.ids", name);
    golden_open_on(&d, name, &par);
    s = new_session(&d, d.model, g);
    expect_ids(s, f, prompt, want, MAX_TOKENS);
    zb_session_free(s);
    golden_close(&d);
}

static void likeliest_tokens_are_those_of_transformers(void)
{
    static const char *const names[] = {
        "llama_base",   "llama_variant", "gpt2_base",
        "mistral_base", "bloom_base",    "qwen2_base",
        "cohere_base",  "gptj_base",     "falcon_7b"};
    static const struct ru_grid both = {2, 2, 1, 1, ZB_SEQ_WHOLE};
    struct zb_st_file *f = open_golden();

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        check_model(f, names[i], &alone);
        check_model(f, names[i], &staged);
        check_model(f, names[i], &both);
    }
    zb_st_close(f);
}

static void so_they_are_on_layouts_that_share_sequences_and_rows(void)
{
    static const struct ru_grid grid[] = {
        {1, 1, 1, 2, ZB_SEQ_WHOLE},        {2, 1, 1, 2, ZB_SEQ_WHOLE},
        {1, 2, 1, 1, ZB_SEQ_SPLIT_GATHER}, {2, 2, 1, 2, ZB_SEQ_SPLIT_GATHER},
        {1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},   {2, 1, 2, 2, ZB_SEQ_ALL_TO_ALL},
        {1, 1, 2, 1, ZB_SEQ_RING},         {2, 1, 2, 1, ZB_SEQ_RING},
    };
    struct zb_st_file *f = open_golden();

    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        check_model(f, "llama_base", &grid[i]);
        check_model(f, "gpt2_base", &grid[i]);
    }
    zb_st_close(f);
}

static void end_of_text_ends_it(void)
{
    struct zb_st_file *f = open_golden();
    int32_t end[MAX_TOKENS];
    struct golden d;
    struct zb_session *s;
    struct zb_model *m = NULL;
    const char *config;
    char *text;

    read_ids(f, "end.token", end);
    golden_open(&d, "llama_base");
    config = zb_st_find_meta(d.file, "config");
    text = zb_format("{\"eos_token_id\": [77, %d], %s", end[0], config + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    ZBT_OK(zb_model_from_json(text, "config", &(struct zb_model_opts){0}, &m));
    CU_ASSERT(zb_model_is_end(m, 77));
    CU_ASSERT(!zb_model_is_end(m, 76));
    s = new_session(&d, m, &staged);
    expect_ids(s, f, "llama_base.prompt", "end.ids", MAX_TOKENS);
    zb_session_free(s);
    zb_model_free(m);
    zb_free(text);
    golden_close(&d);
    zb_st_close(f);
}

/* ---- drawing ------------------------------------------------------------- */

/* u runs over [0, 1) evenly: each token has its share of the draws. */
static void expect_shares(const zb_real *logits, int64_t n,
                          const struct zb_sampling *how, const double *want)
{
    struct zb_choice room[64];
    int64_t drawn[64] = {0};
    int32_t id = -1;

    for (int i = 0; i < N_DRAWS; i++) {
        double u = (i + 0.5) / N_DRAWS;

        ZBT_OK(zb_sample(logits, n, how, u, room, &id));
        CU_ASSERT_FATAL(id >= 0 && id < n);
        drawn[id]++;
    }
    for (int64_t i = 0; i < n; i++) {
        CU_ASSERT(fabs((double)drawn[i] - want[i] * N_DRAWS) <= 1.01);
        CU_ASSERT(want[i] > 0 || drawn[i] == 0);
    }
}

static void drawn_tokens_have_the_probabilities_of_transformers(void)
{
    struct zb_st_file *f = open_golden();
    const struct zb_st_tensor *l = zb_st_find(f, "sample.logits");
    const struct zb_st_tensor *o = zb_st_find(f, "sample.options");
    const struct zb_st_tensor *p = zb_st_find(f, "sample.probs");
    double options[16], *probs;
    zb_real logits[64];
    int64_t n;

    CU_ASSERT_FATAL(l != NULL && o != NULL && p != NULL && l->dims[0] <= 64 &&
                    2 * o->dims[0] <= 16 && p->dims[0] == o->dims[0]);
    n = l->dims[0];
    probs = calloc((size_t)(o->dims[0] * n), sizeof(*probs));
    CU_ASSERT_PTR_NOT_NULL_FATAL(probs);
    ZBT_OK(zb_st_read_real(f, l, logits, n));
    ZBT_OK(zb_st_read_f64(f, o, options, 2 * o->dims[0]));
    ZBT_OK(zb_st_read_f64(f, p, probs, o->dims[0] * n));
    for (int64_t i = 0; i < o->dims[0]; i++) {
        const struct zb_sampling how = {.temperature = options[2 * i],
                                        .top_p = options[2 * i + 1]};

        expect_shares(logits, n, &how, probs + i * n);
    }
    free(probs);
    zb_st_close(f);
}

/* By seed and place: not by what was written before in the session, nor by the
 * layout. */
static void same_seed_draws_the_same_text(void)
{
    struct zb_sampling how = {.temperature = 1, .top_p = 0.9, .seed = 5};
    int32_t ids[3][MAX_TOKENS];
    int64_t n = 0;
    struct golden d;

    golden_open(&d, "gpt2_base");
    for (int k = 0; k < 3; k++) {
        struct zb_session *s =
            new_session(&d, d.model, k % 2 ? &staged : &alone);

        how.seed = k < 2 ? 5 : 6;
        for (int again = 0; again < 2; again++) {
            ids[k][0] = 3;
            ZBT_OK(zb_generate(s, &how, 1, MAX_TOKENS, ids[k], &n));
            CU_ASSERT_EQUAL(n, MAX_TOKENS);
        }
        zb_session_free(s);
    }
    CU_ASSERT_EQUAL(memcmp(ids[0], ids[1], sizeof(ids[0])), 0);
    CU_ASSERT(memcmp(ids[0], ids[2], sizeof(ids[0])) != 0);
    golden_close(&d);
}

/* ---- mistakes ------------------------------------------------------------ */

static void fails(enum zb_status st, enum zb_status want, const char *text)
{
    CU_ASSERT_EQUAL(st, want);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), text));
}

static void mistakes_are_named(void)
{
    const zb_real bad[] = {1, NAN, 2};
    const struct zb_sampling hot = {.temperature = -1, .top_p = 1};
    const struct zb_sampling wide = {.temperature = 1, .top_p = 0};
    int32_t ids[MAX_TOKENS] = {3, 1000};
    struct zb_choice room[3];
    int64_t n;
    struct golden d;
    struct zb_session *s;

    golden_open(&d, "gpt2_base");
    s = new_session(&d, d.model, &alone);
    fails(zb_generate(s, &greedy, 0, 4, ids, &n), ZB_EINVAL, "prompt of 0");
    fails(zb_generate(s, &greedy, 2, 4, ids, &n), ZB_ECONFIG,
          "token 1 of the prompt is 1000");
    fails(zb_generate(s, &hot, 1, 4, ids, &n), ZB_EINVAL, "temperature of -1");
    fails(zb_generate(s, &wide, 1, 4, ids, &n), ZB_EINVAL, "top_p of 0");
    fails(zb_sample(bad, 3, &greedy, 0, room, ids), ZB_EDEVICE, "token 1");
    zb_session_free(s);
    golden_close(&d);
    golden_open(&d, "opt_padded"); /* built for a batch with a mask */
    s = new_session(&d, d.model, &alone);
    fails(zb_generate(s, &greedy, 1, 4, ids, &n), ZB_EUNSUPPORTED,
          "position_ids");
    zb_session_free(s);
    golden_close(&d);
}

/* What fails in a device's thread ends the session. */
static enum zb_status generate_with_failure(const struct golden *d, uint64_t k)
{
    struct zb_session *s = new_session(d, d->model, &alone);
    int32_t ids[MAX_TOKENS] = {3};
    int64_t n = 0;
    enum zb_status st;

    zb_mem_fail_at(k);
    st = zb_generate(s, &greedy, 1, 4, ids, &n);
    zb_mem_fail_at(0);
    zb_session_free(s);
    return st;
}

static void failing_kth_allocation_unwinds(void)
{
    enum zb_status st = ZB_ENOMEM;
    struct golden d;
    uint64_t k = 0;
    int64_t live;

    golden_open(&d, "gpt2_base");
    live = zb_mem_live();
    while (st == ZB_ENOMEM && k < 200) {
        st = generate_with_failure(&d, ++k);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
    }
    CU_ASSERT_EQUAL(st, ZB_OK);
    CU_ASSERT(k > 5);
    golden_close(&d);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(likeliest_tokens_are_those_of_transformers),
        ZBT_CASE(so_they_are_on_layouts_that_share_sequences_and_rows),
        ZBT_CASE(end_of_text_ends_it),
        ZBT_CASE(drawn_tokens_have_the_probabilities_of_transformers),
        ZBT_CASE(same_seed_draws_the_same_text),
        ZBT_CASE(mistakes_are_named),
        ZBT_CASE(failing_kth_allocation_unwinds),
    };

    return zbt_run("generate", cases, ZB_COUNT_OF(cases));
}
