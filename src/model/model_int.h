/* SPDX-License-Identifier: MIT
 *
 * Inside the models: a family is a table of keys and a function that builds the
 * graph. Adding one: src/model/<family>.c and a row in family.c.
 */
#ifndef ZB_MODEL_INT_H
#define ZB_MODEL_INT_H

#include <jansson.h>

#include "zb/model.h"

/* ---- keys of a config ---------------------------------------------------- */

enum zb_key_type {
    ZB_KEY_INT,
    ZB_KEY_REAL,
    ZB_KEY_BOOL,
    ZB_KEY_TEXT,
    ZB_KEY_OBJECT,
    ZB_KEY_LIST
};

/* The largest size that a config may ask for. */
#define ZB_KEY_MAX 2147483647.0

enum zb_key_flags {
    ZB_KEY_NULLABLE = 1, /* null is a value of its own */
    ZB_KEY_ONLY = 2      /* no value but the default is supported */
};

struct zb_key_row {
    const char *name;
    const char *alias; /* another name for it, or NULL */
    enum zb_key_type type;
    const char *def; /* JSON text */
    double lo, hi;   /* of a number */
    unsigned flags;
};

struct zb_family;

/* A checked config: every key of the family has a value of its type. */
struct zb_config {
    const struct zb_family *family;
    const char *architecture; /* of the family's classes: the one to build */
    const char *where;
    const char *text; /* the file, to find lines in; NULL: written by hand */
    const struct zb_model_key *keys; /* by hand, with their lines: all of it, or
                                        instead of the file's */
    size_t n_keys;
    const char *keys_where; /* the file they are in */
    json_t *given;
    json_t *value;
};

/* Values by name; a name that is not in the family's table is a bug. */
int64_t zb_config_int(const struct zb_config *c, const char *name);
double zb_config_real(const struct zb_config *c, const char *name);
int zb_config_bool(const struct zb_config *c, const char *name);
const char *zb_config_text(const struct zb_config *c, const char *name);
/* Or a list; NULL when it is null. */
const json_t *zb_config_object(const struct zb_config *c, const char *name);
int zb_config_is_null(const struct zb_config *c, const char *name);
/* An integer, or `def` where it is null. */
int64_t zb_config_int_or(const struct zb_config *c, const char *name,
                         int64_t def);
/* The row of the table that pad_token_id means, as torch.nn.Embedding reads it:
 * negative counts from the end; -1 when it is null. ZB_ECONFIG when there is
 * none. */
enum zb_status zb_config_padding(const struct zb_config *c, int64_t vocab,
                                 int64_t *row_out) ZB_CHECKED;
/* A mistake in the value of a key: "file:line: key 'name': ...". */
enum zb_status zb_config_fail(const struct zb_config *c, const char *name,
                              const char *fmt, ...) ZB_PRINTF(3, 4);
/* An activation by its Hugging Face name. */
enum zb_status zb_config_act(const struct zb_config *c, const char *name,
                             enum zb_act *act_out) ZB_CHECKED;

enum zb_status zb_config_read_json(const char *text, const char *where,
                                   const struct zb_model_opts *o,
                                   struct zb_config *c) ZB_CHECKED;
enum zb_status zb_config_read_keys(const struct zb_model_key *keys, size_t n,
                                   const char *where,
                                   struct zb_config *c) ZB_CHECKED;
void zb_config_release(struct zb_config *c);

/* ---- building ------------------------------------------------------------ */

struct zb_patterns {
    struct zb_pattern *item;
    size_t n, cap;
};

/* What of the model is trained. */
struct zb_adapt {
    struct zb_patterns freeze; /* names of parameters, as of files in a shell */
    struct zb_patterns targets; /* last parts of names of linear layers */
    int rank;                   /* of adapters; 0: there are none */
    double scale;
};

struct zb_builder {
    struct zb_graph *g;
    const struct zb_config *config;
    const struct zb_model_opts *opts;
    struct zb_adapt *adapt;
    double std; /* of normal initialisation */
};

/* Parameters; the name is a format. Matrices are normal with the given standard
 * deviation, norm weights one, biases zero and, like norms, without decay. All
 * of it is on every rank of the tp group, but for a table of the vocabulary. */
int zb_build_matrix(struct zb_builder *b, double std, int64_t rows,
                    int64_t cols, const char *fmt, ...) ZB_PRINTF(5, 6);
int zb_build_vocab(struct zb_builder *b, int64_t vocab, int64_t hidden,
                   const char *fmt, ...) ZB_PRINTF(4, 5);
int zb_build_vocab_bias(struct zb_builder *b, int64_t vocab, const char *fmt,
                        ...) ZB_PRINTF(3, 4);
int zb_build_ones(struct zb_builder *b, int64_t n, const char *fmt, ...)
    ZB_PRINTF(3, 4);
/* One for each head, split over the tp group as they are: [heads, head_dim]. */
int zb_build_head_ones(struct zb_builder *b, int64_t n_heads, int64_t head_dim,
                       const char *fmt, ...) ZB_PRINTF(4, 5);
int zb_build_zeros(struct zb_builder *b, int64_t n, const char *fmt, ...)
    ZB_PRINTF(3, 4);
/* A layer norm over n with prefix.weight and prefix.bias. */
int zb_build_layernorm(struct zb_builder *b, int x, int64_t n, double eps,
                       const char *prefix, ...) ZB_PRINTF(5, 6);
/* [B,T,heads * head_dim] as [B,T,heads,head_dim]. */
int zb_build_heads(struct zb_builder *b, int x, int64_t head_dim);
/* What of a linear layer the ranks of a tp group have. */
enum zb_side {
    ZB_SIDE_ALL, /* all of it */
    ZB_SIDE_OUT, /* outputs: into heads, into the inner of an MLP */
    ZB_SIDE_IN   /* inputs: back from them; the sums are added */
};

struct zb_linear {
    int64_t n_in, n_out;
    int has_bias, in_by_out; /* in_by_out: the weight is stored [in,out] */
    double std;
    enum zb_side side;
    int n_parts;     /* 0, 1: the outputs are one; more: so many packed ones of
                        equal size (q, k, v) */
    int64_t part_heads[ZB_SPLIT_MAX]; /* [n_parts] heads of each, of one size,
                                         where they are not equal; else 0 */
    int64_t n_heads; /* in the split side, of each part; 0: any columns */
    int is_adapter;  /* of adapt.c: trained although the model is not */
    int is_new_head; /* of a task that the pretrained model may not have had */
};

/* The parameters prefix.weight and prefix.bias, applied to x. */
int zb_build_linear(struct zb_builder *b, int x, const struct zb_linear *l,
                    const char *prefix, ...) ZB_PRINTF(4, 5);
/* adapt.c. Release also after a failure. */
enum zb_status zb_adapt_init(struct zb_adapt *a, const struct zb_family *family,
                             const struct zb_model_opts *o) ZB_CHECKED;
void zb_adapt_release(struct zb_adapt *a);
/* ZB_ECONFIG naming a pattern that was nothing's name. */
enum zb_status zb_adapt_check(const struct zb_adapt *a,
                              const char *where) ZB_CHECKED;
int zb_adapt_freezes(struct zb_adapt *a, const char *name);
/* y = linear layer `name` of x, with what its adapter adds, if it has one. */
int zb_adapt_linear(struct zb_builder *b, int x, int y,
                    const struct zb_linear *l, const char *name);
/* PEFT's adapter_config.json, or NULL without memory. */
json_t *zb_adapt_json(const struct zb_adapt *a, const struct zb_config *c,
                      const struct zb_model_opts *o);

/* ZB_ECONFIG naming the key unless the ranks of the tp group can share `n`
 * heads or columns; `may_repeat`: or some ranks the same one. */
enum zb_status zb_build_check_split(const struct zb_builder *b, const char *key,
                                    int64_t n, int may_repeat) ZB_CHECKED;

/* ZB_ECONFIG naming the key unless the longest sequence of the run has no more
 * positions than it says. */
enum zb_status zb_build_check_positions(const struct zb_builder *b,
                                        const char *key) ZB_CHECKED;

/* The batch's attention_mask, or ZB_G_NONE. Call it once. Models that see all
 * have it, too, where a layout pads sequences. */
int zb_build_key_mask(struct zb_builder *b);
/* A field of the batch with one number for each token. */
int zb_build_ids(struct zb_builder *b, const char *name);
/* The batch's position_ids, from -1 on: a token's number among those of its row
 * that the attention_mask shows, -1 where it shows none (zb_position_ids()).
 * ZB_G_NONE where there is no mask: tokens count from the first. */
int zb_build_position_ids(struct zb_builder *b);
/* The embedding of input_ids, or inputs_embeds itself. */
int zb_build_input(struct zb_builder *b, const char *table, int64_t vocab,
                   int64_t hidden, int padding_idx);
/* The name of a head's table: `tied`, that of the embedding, where
 * tie_word_embeddings says so, else lm_head.weight. */
const char *zb_build_head_table(const struct zb_builder *b, const char *tied);
/* Logits of the normed last hidden state x, with a bias unless its name is NULL;
 * with no_head x itself. */
int zb_build_head(struct zb_builder *b, int x, int64_t vocab, int64_t hidden,
                  const char *table, const char *bias);
/* Output and criterion; `x` is the logits, or with no_head the last hidden
 * state. A label for each token, or of the second for each sequence. */
void zb_build_end(struct zb_builder *b, int x);
void zb_build_end_rows(struct zb_builder *b, int x);
void zb_build_layer(struct zb_builder *b, const char *fmt, ...)
    ZB_PRINTF(2, 3);

/* rope.c: tables of cosines and sines for positions 0..n_pos - 1 as the keys
 * rope_theta, rope_scaling and rope_parameters say. */
struct zb_rope_tables {
    int cos, sin; /* constants [n_pos, dims / 2] */
};
enum zb_status zb_build_rope(struct zb_builder *b, int64_t dims, int64_t n_pos,
                             struct zb_rope_tables *out) ZB_CHECKED;
/* Of a base that is no key. */
enum zb_status zb_build_rope_of(struct zb_builder *b, double base, int64_t dims,
                                int64_t n_pos,
                                struct zb_rope_tables *out) ZB_CHECKED;

/* The keys that zb_build_llama() reads, with a family's defaults. */
#define ZB_LLAMA_KEYS(vocab, inner, n_kv, n_pos)                               \
    {"vocab_size", NULL, ZB_KEY_INT, vocab, 1, ZB_KEY_MAX, 0},                 \
        {"hidden_size", NULL, ZB_KEY_INT, "4096", 1, ZB_KEY_MAX, 0},           \
        {"intermediate_size", NULL, ZB_KEY_INT, inner, 1, ZB_KEY_MAX, 0},      \
        {"num_hidden_layers", NULL, ZB_KEY_INT, "32", 1, 10000, 0},            \
        {"num_attention_heads", NULL, ZB_KEY_INT, "32", 1, ZB_KEY_MAX, 0},     \
        {"num_key_value_heads", NULL, ZB_KEY_INT, n_kv, 1, ZB_KEY_MAX,         \
         ZB_KEY_NULLABLE},                                                     \
        {"head_dim", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX,                  \
         ZB_KEY_NULLABLE},                                                     \
        {"hidden_act", NULL, ZB_KEY_TEXT, "\"silu\"", 0, 0, 0},                \
        {"max_position_embeddings", NULL, ZB_KEY_INT, n_pos, 1, ZB_KEY_MAX,    \
         0},                                                                   \
        {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},           \
        {"rms_norm_eps", NULL, ZB_KEY_REAL, "1e-6", 0, 1, 0},                  \
        {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,    \
         ZB_KEY_NULLABLE},                                                     \
        {"rope_theta", NULL, ZB_KEY_REAL, "10000.0", 1e-3, 1e12, 0},           \
        {"rope_scaling", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},  \
        {"rope_parameters", NULL, ZB_KEY_OBJECT, "null", 0, 0,                 \
         ZB_KEY_NULLABLE},                                                     \
        {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},          \
        {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "false", 0, 0, 0}

/* llama.c: models that differ from Llama in a few keys. window: how many keys
 * layer i sees, 0 for all; NULL: all in every layer. The
 * family's table has ZB_LLAMA_KEYS. */
struct zb_llama_kind {
    int qkv_bias, out_bias, mlp_bias;
    int64_t (*window)(const struct zb_config *c, int64_t layer);
};
enum zb_status zb_build_llama(struct zb_builder *b,
                              const struct zb_llama_kind *kind) ZB_CHECKED;

/* alibi.c: a const with the slope of each head times `scale`; is_rounded: of
 * slopes rounded to bf16. */
enum zb_status zb_build_alibi(struct zb_builder *b, int64_t n_heads,
                              double scale, int is_rounded,
                              int *slopes_out) ZB_CHECKED;

/* ---- families ------------------------------------------------------------ */

#define ZB_FAMILY_MAX_CLASSES 2

struct zb_family {
    const char *name;         /* model_type */
    const char *architecture; /* Hugging Face class of the checkpoint */
    const char *more_classes[ZB_FAMILY_MAX_CLASSES]; /* that `architectures` may
                                                        ask for instead */
    const char *notes; /* what is supported, for lists */
    const struct zb_key_row *keys;
    size_t n_keys;
    const char *layers_key, *vocab_key;
    const char *std_key; /* of initialisation; NULL: initializer_range */
    int sees_all;        /* 1: a token sees those behind it, too */
    int is_in_by_out;    /* 1: weights are stored [in,out] */
    const char *lora_targets; /* layers that PEFT adapts unless told */
    enum zb_status (*build)(struct zb_builder *b);
};

extern const struct zb_family zb_family_llama, zb_family_qwen2,
    zb_family_mistral, zb_family_gpt2, zb_family_gptj, zb_family_cohere,
    zb_family_falcon, zb_family_bloom, zb_family_chatglm, zb_family_opt,
    zb_family_bert;

/* In notes: what rope.c reads. */
#define ZB_NOTE_ROPE "rope: default, linear, llama3"

/* The family of that model_type, or NULL. */
const struct zb_family *zb_family_find(const char *name);

#endif
