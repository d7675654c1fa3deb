/* SPDX-License-Identifier: MIT
 *
 * Models whose sequences are split over 2 and 4 ranks, by all_to_all and by
 * ring attention, against the same model on one device.
 */
#include "config.h"
#include "graph_rig.h"
#include "par_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/model.h"

#define VOCAB 29
#define ROWS 3
#define MAX_SEQ 80

/* Key heads: fewer than 4 ranks. */
#define LLAMA                                                                  \
    "{\"model_type\": \"llama\", \"vocab_size\": 29, \"hidden_size\": 32,"     \
    " \"intermediate_size\": 40, \"num_hidden_layers\": 2,"                    \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2,"                 \
    " \"max_position_embeddings\": 80"
#define GPT2                                                                   \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 29, \"n_positions\": 80,"      \
    " \"n_embd\": 32, \"n_layer\": 2, \"n_head\": 4"
#define BERT                                                                   \
    "{\"model_type\": \"bert\", \"vocab_size\": 29, \"hidden_size\": 32,"      \
    " \"intermediate_size\": 40, \"num_hidden_layers\": 2,"                    \
    " \"num_attention_heads\": 8, \"max_position_embeddings\": 80"

struct model_case {
    const char *name, *json;
    int64_t seq;
    int has_key_mask;
};

static const struct model_case cases[] = {
    {"llama", LLAMA ", \"attention_dropout\": 0.2}", 16, 0},
    {"llama masked", LLAMA ", \"attention_dropout\": 0.2}", 80, 1},
    {"gpt2", GPT2 "}", 72, 0},
    {"gpt2 masked", GPT2 ", \"tie_word_embeddings\": false}", 8, 1},
    {"mistral masked",
     "{\"model_type\": \"mistral\", \"vocab_size\": 29, "
     "\"hidden_size\": 32, \"intermediate_size\": 40, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, "
     "\"num_key_value_heads\": 2, "
     "\"max_position_embeddings\": 80, \"sliding_window\": 7}",
     40, 1},
    {"gptj",
     "{\"model_type\": \"gptj\", \"vocab_size\": 29, "
     "\"n_embd\": 32, \"n_layer\": 2, \"n_head\": 4, "
     "\"rotary_dim\": 4, \"n_positions\": 80}",
     24, 0},
    {"cohere masked",
     "{\"model_type\": \"cohere\", \"vocab_size\": 29, "
     "\"hidden_size\": 32, \"intermediate_size\": 40, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, "
     "\"num_key_value_heads\": 2, "
     "\"max_position_embeddings\": 80, \"use_qk_norm\": true}",
     24, 1},
    {"falcon padded",
     "{\"model_type\": \"falcon\", \"vocab_size\": 29, "
     "\"hidden_size\": 32, \"num_hidden_layers\": 2, "
     "\"num_attention_heads\": 8, \"num_kv_heads\": 4, "
     "\"new_decoder_architecture\": true}",
     21, 0},
    {"bloom masked",
     "{\"model_type\": \"bloom\", \"vocab_size\": 29, "
     "\"hidden_size\": 48, \"n_layer\": 2, \"n_head\": 12}",
     32, 1},
    {"chatglm",
     "{\"model_type\": \"chatglm\", \"vocab_size\": 29, "
     "\"hidden_size\": 32, \"ffn_hidden_size\": 40, "
     "\"num_layers\": 2, \"num_attention_heads\": 8, "
     "\"kv_channels\": 8, \"multi_query_attention\": true, "
     "\"multi_query_group_num\": 2}",
     16, 0},
    {"opt masked",
     "{\"model_type\": \"opt\", \"vocab_size\": 29, "
     "\"hidden_size\": 32, \"ffn_dim\": 40, "
     "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, "
     "\"max_position_embeddings\": 80, \"word_embed_proj_dim\": 20}",
     24, 1},
    {"bert masked", BERT ", \"hidden_dropout_prob\": 0.2}", 24, 1},
    /* lengths that neither 2 nor 4 ranks divide */
    {"llama padded", LLAMA ", \"attention_dropout\": 0.2}", 13, 0},
    {"llama padded, masked", LLAMA ", \"attention_dropout\": 0.3}", 5, 1},
    {"gpt2 padded", GPT2 "}", 79, 0},
    {"bert padded", BERT "}", 21, 0},
};

struct inputs {
    int32_t ids[ROWS * MAX_SEQ], labels[ROWS * MAX_SEQ];
    int32_t mask[ROWS * MAX_SEQ];
    int32_t positions[ROWS * MAX_SEQ], types[ROWS * MAX_SEQ];
    const void *data[5];
    double n_valid;
};

static struct zb_model *model_of(const struct model_case *c,
                                 const struct zb_parallel *par)
{
    const struct zb_model_opts opts = {
        .max_seq = c->seq,
        .has_key_mask = c->has_key_mask,
        .par = par,
    };
    struct zb_model *m;

    ZBT_OK(zb_model_from_json(c->json, "config.json", &opts, &m));
    return m;
}

/* Row 0 is padded in front (queries without a key), row 1 behind. */
static int32_t mask_of(int64_t row, int64_t t, int64_t seq)
{
    return row == 0 ? t >= seq / 3 : row == 1 ? t < seq - seq / 4 : 1;
}

static const void *field_of(const struct inputs *in, const char *name)
{
    const struct {
        const char *name;
        const int32_t *value;
    } field[] = {{"labels", in->labels},          {"input_ids", in->ids},
                 {"position_ids", in->positions}, {"token_type_ids", in->types},
                 {"attention_mask", in->mask},    {"mask", in->mask}};

    for (size_t i = 0; i < ZB_COUNT_OF(field); i++) {
        if (strcmp(field[i].name, name) == 0) {
            return field[i].value;
        }
    }
    return NULL;
}

static void make_inputs(const struct zb_graph *g, int64_t seq, int has_mask,
                        struct inputs *in)
{
    struct zbt_rng rng = {(unsigned long long)seq};

    in->n_valid = 0;
    for (int64_t i = 0; i < ROWS * seq; i++) {
        in->ids[i] = (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
        in->labels[i] = zbt_rand_in(&rng, 0, 5) == 0
                            ? -100
                            : (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
        in->types[i] = i % seq % 3 == 1;
        in->mask[i] = has_mask ? mask_of(i / seq, i % seq, seq) : 1;
        in->n_valid += in->labels[i] != -100;
    }
    zb_position_ids(in->mask, ROWS, seq, in->positions);
    for (int i = 0; i < zb_graph_n_data(g); i++) {
        in->data[i] = field_of(in, zb_graph_data(g, i).name);
    }
}

static void run_one(const struct zb_graph *g, zb_real *const *params,
                    const struct inputs *in, int64_t seq, int is_eval,
                    struct rig_result *r)
{
    const int first[] = {0, zb_graph_n_layers(g)};
    const struct rig_batch batch = {ROWS, (int)seq, in->data};
    const struct rig_opts opts = {.n_chunks = 1,
                                  .first = first,
                                  .seed = 5,
                                  .step = 7,
                                  .is_eval = is_eval,
                                  .no_backward = is_eval};

    rig_run(g, params, &batch, &opts, r);
}

static double norm(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = y != NULL ? x[i] - y[i] : x[i];

        sum += d * d;
    }
    return sqrt(sum);
}

static int64_t elems(const struct zb_graph *g, int p)
{
    struct zb_param_info info = zb_graph_param(g, p);

    return zb_shape_elems(&info.shape);
}

static void expect_same(const char *what, const struct zb_graph *g,
                        const struct rig_result *want,
                        const struct par_result *got, double tol)
{
    double *all[128], total = 0;

    for (int p = 0; p < got->n_params; p++) {
        all[p] = rig_param_grad(g, want, p);
        total = hypot(total, norm(all[p], NULL, elems(g, p)));
    }
    if (!(fabs(got->loss - want->loss) <= tol * fabs(want->loss))) {
        printf("\n%s: loss %.17g, not %.17g\n", what, got->loss, want->loss);
        CU_FAIL("loss");
    }
    for (int p = 0; p < got->n_params; p++) {
        double base = fmax(norm(all[p], NULL, elems(g, p)), 1e-3 * total);
        double error = norm(got->grad[p], all[p], elems(g, p)) / base;

        if (!(error <= tol)) {
            printf("\n%s: gradient of %s is off by %.3g\n", what,
                   zb_graph_param(g, p).name, error);
            CU_FAIL("gradient");
        }
        free(all[p]);
    }
}

static void check_layout(const struct model_case *c,
                         const struct zb_parallel *par,
                         const struct par_opts *how)
{
    struct zb_model *one = model_of(c, NULL), *many = model_of(c, par);
    const struct zb_graph *g = zb_model_graph(one);
    zb_real **params = rig_params(g, 3);
    struct inputs in;
    struct rig_batch batch = {ROWS, (int)c->seq, in.data};
    struct par_opts opts = *how;
    struct rig_result want;
    struct par_result got;
    char what[64];

    snprintf(what, sizeof(what), "%s, %s, tp %d, sp %d", c->name,
             par->mode == ZB_SEQ_RING ? "ring" : "all_to_all", par->tp,
             par->sp);
    make_inputs(g, c->seq, c->has_key_mask, &in);
    run_one(g, params, &in, c->seq, opts.is_eval, &want);
    make_inputs(zb_model_graph(many), c->seq, c->has_key_mask, &in);
    opts.seed = 5;
    opts.step = 7;
    opts.loss_scale = 1 / in.n_valid;
    par_run(zb_model_graph(many), params, &batch, &opts, &got);
    if (opts.is_eval) {
        CU_ASSERT_DOUBLE_EQUAL(got.loss, want.loss, 1e-12 * want.loss);
    } else {
        expect_same(what, g, &want, &got, 1e-12);
    }
    par_result_free(&got);
    rig_result_free(&want);
    rig_params_free(g, params);
    zb_model_free(one);
    zb_model_free(many);
}

static void check_case(const struct model_case *c, enum zb_seq_mode mode,
                       int sp, const struct par_opts *how)
{
    const struct zb_parallel par = {
        .tp = 1, .sp = sp, .mode = mode, .vocab_multiple = 1};

    check_layout(c, &par, how);
}

static void check_all(enum zb_seq_mode mode, const struct par_opts *how)
{
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        check_case(&cases[i], mode, 2, how);
        check_case(&cases[i], mode, 4, how);
    }
}

static void all_to_all_equals_one_device(void)
{
    const struct par_opts how = {.is_plain = 1};

    check_all(ZB_SEQ_ALL_TO_ALL, &how);
}

static void ring_equals_one_device(void)
{
    const struct par_opts how = {.is_plain = 1};

    check_all(ZB_SEQ_RING, &how);
}

static void evaluation_equals_one_device(void)
{
    const struct par_opts how = {.is_eval = 1, .is_plain = 1};

    check_all(ZB_SEQ_ALL_TO_ALL, &how);
    check_all(ZB_SEQ_RING, &how);
}

static void groups_equal_one_device(void)
{
    const struct par_opts how = {.n_threads = 2};

    check_all(ZB_SEQ_ALL_TO_ALL, &how);
    check_all(ZB_SEQ_RING, &how);
}

static void layouts_with_tp_too_equal_one_device(void)
{
    static const struct zb_parallel pars[] = {
        {2, 2, ZB_SEQ_ALL_TO_ALL, 8}, {2, 2, ZB_SEQ_RING, 8},
        {4, 2, ZB_SEQ_RING, 8},       {2, 3, ZB_SEQ_RING, 8},
    };
    const struct par_opts how = {.n_threads = 1};

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        for (size_t k = 0; k < ZB_COUNT_OF(pars); k++) {
            check_layout(&cases[i], &pars[k], &how);
        }
    }
}

/* Delays between operations, accesses checked. */
static void check_backend_has_no_report(void)
{
    struct par_opts how = {.backend = "check", .delay_seed = 3};

    for (size_t i = 0; i < 4; i++) {
        how.is_plain = i <= 1;
        check_case(&cases[i], ZB_SEQ_RING, 2 + 2 * (int)(i % 2), &how);
        check_case(&cases[i], ZB_SEQ_ALL_TO_ALL, 4 - 2 * (int)(i % 2), &how);
        how.delay_seed++;
    }
}

/* Whatever the team, whoever exchanges, whatever is computed again. */
static void two_runs_have_the_same_bits(void)
{
    static const enum zb_seq_mode modes[] = {ZB_SEQ_ALL_TO_ALL, ZB_SEQ_RING};

    for (size_t i = 0; i < ZB_COUNT_OF(modes); i++) {
        const struct zb_parallel par = {.tp = 1, .sp = 4, .mode = modes[i],
                                        .vocab_multiple = 1};
        struct zb_model *m = model_of(&cases[1], &par);
        const struct zb_graph *g = zb_model_graph(m);
        zb_real **params = rig_params(g, 4);
        struct inputs in;
        struct rig_batch batch = {ROWS, (int)cases[1].seq, in.data};
        struct par_opts how = {.loss_scale = 1, .is_plain = 1};
        struct par_result a, b;

        make_inputs(g, cases[1].seq, 1, &in);
        par_run(g, params, &batch, &how, &a);
        how.n_threads = 3;
        how.is_plain = 0;
        how.recompute = ZB_RECOMPUTE_FULL;
        par_run(g, params, &batch, &how, &b);
        CU_ASSERT(a.loss == b.loss);
        for (int p = 0; p < a.n_params; p++) {
            CU_ASSERT_EQUAL(memcmp(a.grad[p], b.grad[p],
                                   (size_t)elems(g, p) * sizeof(double)),
                            0);
        }
        par_result_free(&a);
        par_result_free(&b);
        rig_params_free(g, params);
        zb_model_free(m);
    }
}

/* ---- attention by itself ------------------------------------------------- */

struct attn_case {
    int n_q, n_kv, causal, has_mask;
    int is_woven; /* heads of q, k and v lie between each other */
    int64_t window;
    int has_slopes;
};

static const struct attn_case attns[] = {
    {8, 4, 0, 0, 0, 0, 0}, {4, 4, 0, 1, 0, 0, 0}, {8, 2, 1, 1, 0, 0, 1},
    {4, 1, 0, 1, 0, 0, 0}, {8, 8, 1, 0, 1, 0, 0}, {4, 2, 1, 0, 0, 3, 0},
    {8, 8, 1, 0, 1, 7, 1}, {4, 4, 0, 0, 0, 0, 1},
};

enum { CLASSES = 32, WIDTH = 6 };

/* Heads of q, k and v: [B,T,heads,D] each. */
static void make_heads(struct zb_graph *g, const struct attn_case *c, int x,
                       int out[3])
{
    const int64_t n = c->n_q + 2 * c->n_kv, d = CLASSES / c->n_q;
    const int64_t first[3] = {0, c->n_q, c->n_q + c->n_kv};
    const int64_t heads[3] = {c->n_q, c->n_kv, c->n_kv};
    int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), n, d};

    if (c->is_woven) {
        dim[2] = c->n_q;
        dim[3] = 3 * d;
        x = zb_g_reshape(g, x, 4, dim);
    }
    for (int i = 0; i < 3; i++) {
        dim[2] = heads[i];
        dim[3] = d;
        out[i] = c->is_woven
                     ? zb_g_slice(g, x, i * d, d)
                     : zb_g_reshape(
                           g, zb_g_slice(g, x, first[i] * d, heads[i] * d), 4,
                           dim);
    }
}

/* Attention over projections of rows of a table, then cross-entropy. */
static struct zb_graph *attention_graph(const struct attn_case *c,
                                        const struct zb_parallel *par)
{
    const int64_t b = ZB_DIM(ZB_SYM_BATCH), t = ZB_DIM(ZB_SYM_SEQ);
    const int64_t bt[] = {b, t};
    const int64_t keys[] = {b, par != NULL ? ZB_DIM(ZB_SYM_FULL) : t};
    const int64_t table[] = {VOCAB, WIDTH};
    const int64_t w[] = {(c->n_q + 2 * c->n_kv) * (CLASSES / c->n_q), WIDTH};
    const struct zb_param_opts normal = {.init = ZB_INIT_NORMAL, .std = 1};
    struct zb_attn_opts o = {.causal = c->causal,
                             .scale = 0.6,
                             .dropout = 0.25,
                             .key_mask = ZB_G_NONE,
                             .window = c->window,
                             .has_slopes = c->has_slopes};
    const zb_real slope[] = {0.5F,   0.25F, 0.125F, 0.06F,
                             -0.03F, 0.7F,  0.35F,  0.1F};
    const int64_t n_slopes = c->n_q;
    struct zb_graph *g;
    int ids, labels, x, qkv[3];

    ZBT_OK(par != NULL ? zb_graph_new_parallel(par, &g) : zb_graph_new(&g));
    ids = zb_g_data(g, "input_ids", ZB_DTYPE_I32, 2, bt);
    labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, bt);
    if (c->has_mask) {
        o.key_mask = zb_g_data(g, "mask", ZB_DTYPE_I32, 2, keys);
    }
    o.slopes = zb_g_const(g, "slopes", 1, &n_slopes, slope);
    zb_g_layer(g, "all");
    x = zb_g_embedding(g, ids, zb_g_param(g, "table", 2, table, &normal), -1);
    x = zb_g_linear(g, x, zb_g_param(g, "w", 2, w, &normal), ZB_G_NONE, 0);
    make_heads(g, c, x, qkv);
    x = zb_g_attention(g, qkv[0], qkv[1], qkv[2], &o);
    zb_g_loss(g, zb_g_xent(g, x, labels), labels);
    ZBT_OK(zb_graph_finish(g));
    return g;
}

static double loss_at(const struct zb_graph *g, zb_real *const *params,
                      const struct rig_batch *batch, struct par_opts opts)
{
    struct par_result r;
    double loss;

    opts.no_backward = 1;
    par_run(g, params, batch, &opts, &r);
    loss = r.loss;
    par_result_free(&r);
    return loss;
}

/* A few elements of each parameter, moved. */
static void expect_derivative(const struct zb_graph *g, zb_real **params,
                              const struct rig_batch *batch,
                              const struct par_opts *opts,
                              const struct par_result *r)
{
    const double h = 1e-5;

    for (int p = 0; p < r->n_params; p++) {
        int64_t n = elems(g, p);
        double scale = norm(r->grad[p], NULL, n) / sqrt((double)n);

        for (int64_t i = 0; i < n; i += n / 6) {
            zb_real x = params[p][i];
            double up, down;

            params[p][i] = x + h;
            up = loss_at(g, params, batch, *opts);
            params[p][i] = x - h;
            down = loss_at(g, params, batch, *opts);
            params[p][i] = x;
            CU_ASSERT_DOUBLE_EQUAL(r->grad[p][i], (up - down) / (2 * h),
                                   1e-6 * (scale + fabs(r->grad[p][i])));
        }
    }
}

static void check_attention(const struct attn_case *c, enum zb_seq_mode mode,
                            int sp, int64_t seq)
{
    const struct zb_parallel par = {.tp = 1, .sp = sp, .mode = mode,
                                    .vocab_multiple = 1};
    struct zb_graph *one = attention_graph(c, NULL);
    struct zb_graph *g = attention_graph(c, &par);
    zb_real **params = rig_params(one, 8);
    struct inputs in;
    struct rig_batch batch = {ROWS, (int)seq, in.data};
    struct par_opts opts = {.seed = 5, .step = 7, .is_plain = 1};
    struct rig_result want;
    struct par_result got;
    char what[64];

    snprintf(what, sizeof(what), "attention %d, mode %d, sp %d, %d tokens",
             (int)(c - attns), (int)mode, sp, (int)seq);
    make_inputs(g, seq, 1, &in);
    run_one(one, params, &in, seq, 0, &want);
    opts.loss_scale = 1 / in.n_valid;
    par_run(g, params, &batch, &opts, &got);
    expect_same(what, one, &want, &got, 1e-12);
    expect_derivative(g, params, &batch, &opts, &got);
    par_result_free(&got);
    rig_result_free(&want);
    rig_params_free(one, params);
    zb_graph_free(one);
    zb_graph_free(g);
}

static void attention_has_the_gradient_of_its_loss(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(attns); i++) {
        check_attention(&attns[i], ZB_SEQ_RING, 2, 24);
        check_attention(&attns[i], ZB_SEQ_RING, 3, 24);
        check_attention(&attns[i], ZB_SEQ_ALL_TO_ALL, i % 2 == 0 ? 2 : 4, 24);
    }
}

/* Also queries without a key, which see all keys alike, see no padding. */
static void padding_is_no_key_of_any_attention(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(attns); i++) {
        check_attention(&attns[i], ZB_SEQ_RING, 2, 11);
        check_attention(&attns[i], ZB_SEQ_RING, 4, 17); /* empty pieces */
        check_attention(&attns[i], ZB_SEQ_ALL_TO_ALL, i % 2 == 0 ? 2 : 4, 13);
    }
}

/* ---- mistakes ------------------------------------------------------------ */

static void heads_that_can_not_be_shared_are_refused(void)
{
    static const struct {
        const char *json;
        int sp;
        const char *word;
    } bad[] = {
        {GPT2 "}", 3, "4 query heads"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": 48,"
         " \"intermediate_size\": 8, \"num_hidden_layers\": 1,"
         " \"num_attention_heads\": 12, \"num_key_value_heads\": 3}",
         4, "3 key heads"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(bad); i++) {
        const struct zb_parallel par = {.tp = 1, .sp = bad[i].sp,
                                        .mode = ZB_SEQ_ALL_TO_ALL,
                                        .vocab_multiple = 1};
        const struct zb_model_opts opts = {.par = &par};
        struct zb_model *m;

        CU_ASSERT(zb_model_from_json(bad[i].json, "c.json", &opts, &m) !=
                  ZB_OK);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), bad[i].word));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "sp_size"));
    }
}

int main(void)
{
    static const struct zbt_case list[] = {
        ZBT_CASE(all_to_all_equals_one_device),
        ZBT_CASE(ring_equals_one_device),
        ZBT_CASE(evaluation_equals_one_device),
        ZBT_CASE(groups_equal_one_device),
        ZBT_CASE(layouts_with_tp_too_equal_one_device),
        ZBT_CASE(check_backend_has_no_report),
        ZBT_CASE(two_runs_have_the_same_bits),
        ZBT_CASE(attention_has_the_gradient_of_its_loss),
        ZBT_CASE(padding_is_no_key_of_any_attention),
        ZBT_CASE(heads_that_can_not_be_shared_are_refused),
    };

    return zbt_run("seq_parallel", list, ZB_COUNT_OF(list));
}
