/* SPDX-License-Identifier: MIT
 *
 * The models of tests/golden/ (README.md there) and the measure of design
 * section 8 that gradients are compared with. */
#ifndef GOLDEN_RIG_H
#define GOLDEN_RIG_H

#include "zb/ckpt.h"
#include "zb/model.h"

/* X(case, has_after): every language model; has_after: also weights after two
 * updates. */
#define GOLDEN_MODELS(X)                                                       \
    X(llama_base, 1)                                                           \
    X(llama_default_rope, 0)                                                   \
    X(llama_linear_rope, 0)                                                    \
    X(llama_variant, 0)                                                        \
    X(llama_padded, 0)                                                         \
    X(gpt2_base, 1)                                                            \
    X(gpt2_inverse_layer, 0)                                                   \
    X(gpt2_padded, 0)                                                          \
    X(qwen2_base, 1)                                                           \
    X(qwen2_padded, 0)                                                         \
    X(mistral_base, 1)                                                         \
    X(mistral_padded, 0)                                                       \
    X(gptj_base, 1)                                                            \
    X(gptj_padded, 0)                                                          \
    X(cohere_base, 1)                                                          \
    X(cohere_padded, 0)                                                        \
    X(falcon_7b, 1)                                                            \
    X(falcon_40b, 0)                                                           \
    X(falcon_one_norm, 0)                                                      \
    X(falcon_rw, 0)                                                            \
    X(bloom_base, 1)                                                           \
    X(bloom_padded, 0)                                                         \
    X(chatglm_base, 1)                                                         \
    X(chatglm_padded, 0)                                                       \
    X(opt_base, 1)                                                             \
    X(opt_padded, 0)                                                           \
    X(opt_post_norm, 0)                                                        \
    X(bert_base, 1)                                                            \
    X(bert_padded, 0)                                                          \
    X(bert_classifier, 0)                                                      \
    X(bert_pre_training, 0)                                                    \
    X(llama_lora, 1)                                                           \
    X(gpt2_lora, 0)

#define GOLDEN_FIELDS 6

struct golden {
    struct zb_st_file *file;
    struct zb_model *model;
    const struct zb_graph *g;
    zb_real **params; /* start values */
    int rows, seq;
    const void *data[GOLDEN_FIELDS]; /* fields in the graph's order */
    int32_t *ids, *mask, *positions, *types, *follows;
    int32_t *labels; /* targets: of a causal model shifted */
};

/* Case `name` of tests/golden/. Asserts success. */
void golden_open(struct golden *d, const char *name);
void golden_open_as(struct golden *d, const char *name, enum zb_dtype storage);
/* The same for shards of a layout; params are whole. */
void golden_open_on(struct golden *d, const char *name,
                    const struct zb_parallel *par);
void golden_close(struct golden *d);

/* A tensor of the file as doubles, to be freed. Asserts that it is there. */
double *golden_doubles(const struct golden *d, const char *name);

/* Norm of all gradients of the file together. */
double golden_total_norm(const struct golden *d);

/* || a - b || / max(|| b ||, floor) */
double golden_error(const double *a, const double *b, int64_t n, double floor);

#endif
