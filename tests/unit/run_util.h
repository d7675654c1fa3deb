/* SPDX-License-Identifier: MIT
 *
 * Small models, batches and sessions for the tests of the runtime. */
#ifndef RUN_UTIL_H
#define RUN_UTIL_H

#include "zb/model.h"
#include "zb/run.h"

/* 6-block tiny models of both families: vocabulary 64, width 32. `dropout` is
 * gpt2's; its head is tied to its embedding, llama's is not. */
struct zb_model *ru_llama(void);
struct zb_model *ru_gpt2(double dropout);

/* The same for a rank of a layout; ru_gpt2_on() has dropout 0.1. */
typedef struct zb_model *(*ru_model_fn)(const struct zb_parallel *par);
struct zb_model *ru_llama_on(const struct zb_parallel *par);
struct zb_model *ru_gpt2_on(const struct zb_parallel *par);

/* ru_llama_on() that stores its tensors in another type. */
struct zb_model *ru_llama_as(const struct zb_parallel *par,
                             enum zb_dtype storage);

/* Like ru_llama(), with an attention_mask field. */
struct zb_model *ru_llama_masked(void);

/* For graphs of a test's own: parameter "NAME.LAYER", [rows, cols], or [rows]
 * with cols 0, of normal start values. */
int ru_param(struct zb_graph *g, const char *name, int layer, int64_t rows,
             int64_t cols, struct zb_split split);

#define RU_SEQ 12

/* A batch of random tokens. Rows from 1 on end in ignored labels: row r has r %
 * 4 of them, so that microbatches count different numbers of targets. */
struct ru_batch {
    int64_t n_rows, seq_len;
    int32_t *ids, *labels;
    int64_t *sample;
    const void *field[2];
    struct zb_step_input in;
};
void ru_batch_init(struct ru_batch *b, int64_t n_rows, int64_t seq_len,
                   unsigned long long seed);
void ru_batch_release(struct ru_batch *b);

/* Options of a small session on the cpu backend; ZB_TEST_BACKEND in the
 * environment names another one, ZB_TEST_SEED the seed of its delays. With cuda
 * up to RU_DEVICES devices share the first GPU, or with ZB_TEST_GPUS=4 four. */
#define RU_DEVICES 32
struct zb_session_opts ru_opts(int n_stages, int n_micro, int64_t max_rows);

struct ru_grid {
    int pp, tp, sp, dp;
    enum zb_seq_mode mode;
};
/* The same for n_rows in microbatches of 2, over all replicas. */
struct zb_session_opts ru_grid_opts(const struct ru_grid *g, int64_t n_rows);

/* What a training step leaves: enough to compare bit by bit. */
struct ru_result {
    double loss, norm;
    size_t n;
    zb_real *grads; /* all parameters, one after the other */
    zb_real *params; /* after two steps */
};

/* Run: forward_backward, take the gradients, optimizer step, a second train
 * step, take the parameters. Asserts success. */
void ru_train_two_steps(const struct zb_model *m,
                        const struct zb_session_opts *o,
                        const struct ru_batch *b, struct ru_result *r);
void ru_result_release(struct ru_result *r);

/* Elements of all parameters together, and all of them, one after the other. */
size_t ru_n_elems(const struct zb_model *m);
void ru_get_params(struct zb_session *s, zb_real *out);
void ru_get_grads(struct zb_session *s, zb_real *out);

/* Rows [first, first + n) of a batch; borrows them. Not to be released. */
void ru_rows(const struct ru_batch *b, int64_t first, int64_t n,
             struct ru_batch *part);

/* || a - b || / || b || */
double ru_error(const zb_real *a, const zb_real *b, size_t n);
int ru_result_equal(const struct ru_result *a, const struct ru_result *b);

#endif
