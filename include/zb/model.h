/* SPDX-License-Identifier: MIT
 *
 * Model families: from a Hugging Face config.json (or the same keys written in
 * the configuration file) to a graph.
 *
 *     struct zb_model *m;
 *     ZB_TRY(zb_model_from_json(text, "config.json", &opts, &m));
 *     zb_model_graph(m);               // finished, ready to be cut
 *
 * Adding a family is one file under src/model/ (its table of keys and its
 * build function) and one row in the table of families.
 * Threads: any; a model is read-only once made.
 */
#ifndef ZB_MODEL_H
#define ZB_MODEL_H

#include <stdio.h>

#include "zb/graph.h"
#include "zb/status.h"

struct zb_model;

/* One key of a config: name, and its value as JSON text (a bare word is taken
 * as a string), with the line it stands in for messages (0: unknown;
 * ZB_MODEL_LINE_SET: the command line, as --set). */
#define ZB_MODEL_LINE_SET (-1)
struct zb_model_key {
    const char *name;
    const char *value;
    int line;
};

/* How a model is built, beyond its config. */
struct zb_model_opts {
    int64_t max_seq;   /* longest sequence of the run; 0: the config's limit */
    /* Keys that count instead of those of a config.json; keys_where names their
     * file in messages. */
    const struct zb_model_key *keys;
    size_t n_keys;
    const char *keys_where;
    double init_std;   /* <= 0: the config's initializer_range */
    int has_key_mask;  /* 1: the batch has an attention_mask field [B,T], of
                          whole sequences in every layout. A model whose
                          positions depend on it (opt) has the field
                          position_ids [B,T], too. A model that is not causal
                          has it also where the layout pads sequences
                          (zb_parallel_seq_multiple()) */
    int has_embeds;    /* 1: the batch has inputs_embeds [B,T,H], not ids */
    const struct zb_parallel *par; /* NULL: one device */
    enum zb_dtype storage; /* zb_g_storage(); inputs_embeds are of this type */
    /* Parameters that are not trained: patterns of names, as of files in a
     * shell. */
    const char *const *freeze;
    size_t n_freeze;
    /* > 0: only low-rank adapters of this rank are trained, beside the linear
     * layers of blocks whose names end with one of the targets (none: those
     * that PEFT takes); their product times alpha / rank is added. */
    int lora_rank;
    double lora_alpha;
    const char *const *lora_targets;
    size_t n_lora_targets;
    const char *base_path; /* of the weights, for adapter_config.json */
    int no_head;       /* 1: base model: output last_hidden_state, no logits */
    /* Called at the end to add a criterion of the caller's own to the last
     * layer instead of cross-entropy on labels: `hidden` is the last tensor
     * (logits, or the last hidden state with no_head). */
    void (*criterion)(struct zb_graph *g, int hidden, void *arg);
    void *criterion_arg;
};

/* Build from the text of a config.json; `where` names it in messages. Unknown
 * keys of the file are ignored when they do not change the result (a list of
 * such keys is kept: torch_dtype, ...); a key that asks for
 * something not supported is refused by name. */
enum zb_status zb_model_from_json(const char *text, const char *where,
                                  const struct zb_model_opts *opts,
                                  struct zb_model **m_out) ZB_CHECKED;

/* Build from keys written by hand (one of them is model_type): unknown keys are
 * errors with the nearest known name. */
enum zb_status zb_model_from_keys(const struct zb_model_key *keys, size_t n,
                                  const char *where,
                                  const struct zb_model_opts *opts,
                                  struct zb_model **m_out) ZB_CHECKED;

/* Wrap a graph the caller built and finished; takes it on success. Layers
 * [n_before, n_before + n_blocks) are the repeated ones. */
enum zb_status zb_model_from_graph(struct zb_graph *g, int n_before,
                                   int n_blocks,
                                   struct zb_model **m_out) ZB_CHECKED;
void zb_model_free(struct zb_model *m);

/* position_ids of an attention_mask [rows, seq]: how many tokens before it in
 * its row the mask shows, -1 where it does not show the token. */
void zb_position_ids(const int32_t *mask, int64_t rows, int64_t seq,
                     int32_t *ids_out);

const struct zb_graph *zb_model_graph(const struct zb_model *m);
const char *zb_model_type(const struct zb_model *m);
/* Which layers are the repeated ones, for cutting by blocks. */
int zb_model_n_before(const struct zb_model *m);
int zb_model_n_blocks(const struct zb_model *m);
int64_t zb_model_vocab_size(const struct zb_model *m);
/* 1: a token sees none behind it, and what it is to predict is the next one (a
 * graph of one's own counts as such); 0: of encoders, whose labels belong to
 * the tokens themselves. */
int zb_model_is_causal(const struct zb_model *m);
/* Whether a token is one of those that end a text: the config's eos_token_id, a
 * number or a list; none where it has no such key. */
int zb_model_is_end(const struct zb_model *m, int32_t id);
/* The config as JSON text (every key with its effective value). */
const char *zb_model_config_json(const struct zb_model *m);

/* With adapters PEFT's adapter_config.json, else NULL. */
const char *zb_model_adapter_json(const struct zb_model *m);

/* Names of the families: NULL past the end. */
const char *zb_model_family(size_t i);
/* What each supports, and the keys of which only one value is: a table in
 * Markdown. */
void zb_model_list(FILE *f);

#endif
