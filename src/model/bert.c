/* SPDX-License-Identifier: MIT
 *
 * BERT: an encoder, which sees the whole sequence; norms behind each half of a
 * block; heads for masked words and for whole sequences.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>
#include <string.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "30522", 1, ZB_KEY_MAX, 0},
    {"hidden_size", NULL, ZB_KEY_INT, "768", 1, ZB_KEY_MAX, 0},
    {"num_hidden_layers", NULL, ZB_KEY_INT, "12", 1, 10000, 0},
    {"num_attention_heads", NULL, ZB_KEY_INT, "12", 1, ZB_KEY_MAX, 0},
    {"intermediate_size", NULL, ZB_KEY_INT, "3072", 1, ZB_KEY_MAX, 0},
    {"hidden_act", NULL, ZB_KEY_TEXT, "\"gelu\"", 0, 0, 0},
    {"hidden_dropout_prob", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"attention_probs_dropout_prob", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"classifier_dropout", NULL, ZB_KEY_REAL, "null", 0, 0.999,
     ZB_KEY_NULLABLE},
    {"max_position_embeddings", NULL, ZB_KEY_INT, "512", 1, ZB_KEY_MAX, 0},
    {"type_vocab_size", NULL, ZB_KEY_INT, "2", 1, ZB_KEY_MAX, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"layer_norm_eps", NULL, ZB_KEY_REAL, "1e-12", 0, 1, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "0", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"num_labels", NULL, ZB_KEY_INT, "null", 2, ZB_KEY_MAX, ZB_KEY_NULLABLE},
    {"id2label", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"problem_type", NULL, ZB_KEY_TEXT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"position_embedding_type", NULL, ZB_KEY_TEXT, "\"absolute\"", 0, 0,
     ZB_KEY_ONLY},
    {"is_decoder", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"add_cross_attention", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
};

#define MASKED_WORDS "BertForMaskedLM"
#define PRE_TRAINING "BertForPreTraining"
#define WHOLE_SEQUENCES "BertForSequenceClassification"

struct bert {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_pos, n_types, n_labels,
        padding;
    double eps, drop, attn_drop, class_drop;
    enum zb_act act;
    int is_classifier, is_pre_training, key_mask;
};

/* As many as id2label has, where it is given. */
static enum zb_status read_labels(struct bert *m, const struct zb_config *c)
{
    const json_t *names = zb_config_object(c, "id2label");
    int64_t n_names = names != NULL ? (int64_t)json_object_size(names) : 2;

    m->n_labels = zb_config_int_or(c, "num_labels", n_names);
    if (names != NULL && n_names != m->n_labels) {
        return zb_config_fail(c, "num_labels", "is %lld, but id2label has %lld",
                              (long long)m->n_labels, (long long)n_names);
    }
    if (m->n_labels < 2) {
        return zb_config_fail(c, "id2label",
                              "has %lld labels; classes are at least two (one "
                              "number to fit is not supported)",
                              (long long)m->n_labels);
    }
    if (!zb_config_is_null(c, "problem_type") &&
        strcmp(zb_config_text(c, "problem_type"),
               "single_label_classification") != 0) {
        return zb_config_fail(c, "problem_type",
                              "'%s' is not supported "
                              "(single_label_classification)",
                              zb_config_text(c, "problem_type"));
    }
    return ZB_OK;
}

/* What a head that reads the first token can not be. */
static enum zb_status check_pooled(struct bert *m, const struct zb_config *c)
{
    if (m->b->adapt->rank > 0) {
        return zb_config_fail(c, "architectures",
                              "%s has no adapters: its head would stay as it "
                              "is (model.lora_rank)",
                              c->architecture);
    }
    if (m->b->opts->par != NULL && m->b->opts->par->sp > 1) {
        return zb_config_fail(c, "architectures",
                              "%s can not cut sequences over sp_size %d: its "
                              "head reads their first token",
                              c->architecture, m->b->opts->par->sp);
    }
    return ZB_OK;
}

static enum zb_status read_config(struct bert *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->inner = zb_config_int(c, "intermediate_size");
    m->n_layers = zb_config_int(c, "num_hidden_layers");
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->n_pos = zb_config_int(c, "max_position_embeddings");
    m->n_types = zb_config_int(c, "type_vocab_size");
    m->eps = zb_config_real(c, "layer_norm_eps");
    m->drop = zb_config_real(c, "hidden_dropout_prob");
    m->attn_drop = zb_config_real(c, "attention_probs_dropout_prob");
    m->class_drop = zb_config_is_null(c, "classifier_dropout")
                        ? m->drop
                        : zb_config_real(c, "classifier_dropout");
    m->is_classifier = strcmp(c->architecture, WHOLE_SEQUENCES) == 0;
    m->is_pre_training = strcmp(c->architecture, PRE_TRAINING) == 0;
    if (m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "num_attention_heads",
                              "%lld does not divide hidden_size %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    if (m->is_classifier) {
        ZB_TRY(read_labels(m, c));
    }
    if (m->is_classifier || m->is_pre_training) {
        ZB_TRY(check_pooled(m, c));
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    ZB_TRY(zb_build_check_split(m->b, "intermediate_size", m->inner, 0));
    ZB_TRY(zb_build_check_positions(m->b, "max_position_embeddings"));
    ZB_TRY(zb_config_padding(c, m->vocab, &m->padding));
    return zb_config_act(c, "hidden_act", &m->act);
}

/* ---- a block ------------------------------------------------------------- */

static int linear(const struct bert *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    l.has_bias = 1;
    return zb_build_linear(m->b, x, &l, "bert.encoder.layer.%lld.%s",
                           (long long)i, name);
}

static int heads(const struct bert *m, int64_t i, const char *name, int x)
{
    const struct zb_linear in = {.n_in = m->hidden,
                                 .n_out = m->hidden,
                                 .side = ZB_SIDE_OUT,
                                 .n_heads = m->n_heads};

    return zb_build_heads(m->b, linear(m, i, name, x, in),
                          m->hidden / m->n_heads);
}

static int attention(const struct bert *m, int64_t i, int x)
{
    const struct zb_attn_opts opts = {
        .scale = 1.0 / sqrt((double)(m->hidden / m->n_heads)),
        .dropout = m->attn_drop,
        .key_mask = m->key_mask,
    };
    const struct zb_linear out = {.n_in = m->hidden,
                                  .n_out = m->hidden,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int q = heads(m, i, "attention.self.query", x);
    int k = heads(m, i, "attention.self.key", x);
    int v = heads(m, i, "attention.self.value", x);
    int y = zb_g_attention(m->b->g, q, k, v, &opts);

    return linear(m, i, "attention.output.dense", y, out);
}

static int mlp(const struct bert *m, int64_t i, int x)
{
    const struct zb_linear in = {
        .n_in = m->hidden, .n_out = m->inner, .side = ZB_SIDE_OUT};
    const struct zb_linear out = {
        .n_in = m->inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int y =
        zb_g_act(m->b->g, linear(m, i, "intermediate.dense", x, in), m->act);

    return linear(m, i, "output.dense", y, out);
}

/* norm(x + y) */
static int join(const struct bert *m, int64_t i, const char *name, int x, int y)
{
    struct zb_graph *g = m->b->g;

    x = zb_g_add(g, x, zb_g_dropout(g, y, m->drop));
    return zb_build_layernorm(m->b, x, m->hidden, m->eps,
                              "bert.encoder.layer.%lld.%s", (long long)i, name);
}

/* ---- before and after them ----------------------------------------------- */

/* The order in which the three are added is that of the reference. */
static int embed(const struct bert *m)
{
    struct zb_builder *b = m->b;
    int x = zb_build_input(b, "bert.embeddings.word_embeddings.weight",
                           m->vocab, m->hidden, (int)m->padding);
    int types = zb_build_matrix(b, b->std, m->n_types, m->hidden,
                                "bert.embeddings.token_type_embeddings.weight");
    int places = zb_build_matrix(b, b->std, m->n_pos, m->hidden,
                                 "bert.embeddings.position_embeddings.weight");

    x = zb_g_position_at(b->g, x, zb_build_ids(b, "token_type_ids"), types, 0);
    x = zb_g_position(b->g, x, places, 0);
    x = zb_build_layernorm(b, x, m->hidden, m->eps,
                           "bert.embeddings.LayerNorm");
    return zb_g_dropout(b->g, x, m->drop);
}

static int dense(const struct bert *m, int x, enum zb_act act, const char *name)
{
    const struct zb_linear l = {
        .n_in = m->hidden,
        .n_out = m->hidden,
        .has_bias = 1,
        .std = m->b->std,
        .is_new_head = m->is_classifier,
    };

    return zb_g_act(m->b->g, zb_build_linear(m->b, x, &l, "%s", name), act);
}

/* Logits of every word. */
static int word_head(const struct bert *m, int x)
{
    struct zb_builder *b = m->b;
    int is_tied = zb_config_bool(b->config, "tie_word_embeddings");

    x = dense(m, x, m->act, "cls.predictions.transform.dense");
    x = zb_build_layernorm(b, x, m->hidden, m->eps,
                           "cls.predictions.transform.LayerNorm");
    return zb_build_head(b, x, m->vocab, m->hidden,
                         is_tied ? "bert.embeddings.word_embeddings.weight"
                                 : "cls.predictions.decoder.weight",
                         "cls.predictions.bias");
}

/* Of the first token of each sequence. */
static int pool(const struct bert *m, int x)
{
    return dense(m, zb_g_first(m->b->g, x), ZB_ACT_TANH, "bert.pooler.dense");
}

/* Logits of n_out classes of every sequence. */
static int class_head(const struct bert *m, int x, int64_t n_out,
                      const char *name)
{
    const struct zb_linear l = {
        .n_in = m->hidden,
        .n_out = n_out,
        .has_bias = 1,
        .std = m->b->std,
        .is_new_head = m->is_classifier,
    };

    return zb_build_linear(m->b, x, &l, "%s", name);
}

/* A sequence is two parts of a text; whether the second follows the first is to
 * be told, too. */
static void end_pre_training(const struct bert *m, int x)
{
    const int64_t bt[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};
    struct zb_graph *g = m->b->g;
    int words = word_head(m, x);
    int next = class_head(m, pool(m, x), 2, "cls.seq_relationship");
    int labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, bt);
    int is_next = zb_g_data(g, "next_sentence_label", ZB_DTYPE_I32, 1, bt);

    zb_g_output(g, "prediction_logits", words);
    zb_g_output(g, "seq_relationship_logits", next);
    zb_g_loss(g, zb_g_xent(g, words, labels), labels);
    zb_g_loss(g, zb_g_xent(g, next, is_next), is_next);
}

static void end(const struct bert *m, int x)
{
    struct zb_builder *b = m->b;

    if (b->opts->no_head) {
        zb_build_end(b, x);
    } else if (m->is_classifier) {
        x = zb_g_dropout(b->g, pool(m, x), m->class_drop);
        zb_build_end_rows(b, class_head(m, x, m->n_labels, "classifier"));
    } else if (m->is_pre_training && b->opts->criterion == NULL) {
        end_pre_training(m, x);
    } else {
        zb_build_end(b, word_head(m, x));
    }
}

static enum zb_status build(struct zb_builder *b)
{
    struct bert m = {.b = b};
    int x;

    ZB_TRY(read_config(&m, b->config));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = embed(&m);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = join(&m, i, "attention.output.LayerNorm", x, attention(&m, i, x));
        x = join(&m, i, "output.LayerNorm", x, mlp(&m, i, x));
    }
    zb_build_layer(b, "head");
    end(&m, x);
    return ZB_OK;
}

const struct zb_family zb_family_bert = {
    .name = "bert",
    .architecture = MASKED_WORDS,
    .more_classes = {WHOLE_SEQUENCES, PRE_TRAINING},
    .notes = "an encoder: array data with labels, not --generate; token types; "
             "single_label_classification; heads for sequences not with "
             "sp_size > 1",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .sees_all = 1,
    .lora_targets = "query,value",
    .build = build,
};
