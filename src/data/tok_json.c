/* SPDX-License-Identifier: MIT
 *
 * tokenizer.json as a whole: its parts, and the tokens that are added. */
#include "config.h"
#include "data/tok_int.h"

#include "data/data_int.h"
#include "zb/mem.h"

/* The largest real ones are some 30 MB. */
#define MAX_BYTES (1 << 28)
#define MAX_ADDED (1 << 20)

const char *zb_tok_type(const json_t *o)
{
    return json_string_value(json_object_get(o, "type"));
}

enum zb_status zb_tok_get_bool(const struct zb_tokenizer *tok, const json_t *o,
                               const char *key, int def, int *value)
{
    const json_t *v = json_object_get(o, key);

    if (v != NULL && !json_is_null(v) && !json_is_boolean(v)) {
        return zb_fail(ZB_ECONFIG, "%s: %s is neither true nor false",
                       tok->name, key);
    }
    *value = json_is_boolean(v) ? json_is_true(v) : def;
    return ZB_OK;
}

enum zb_status zb_tok_get_text(const struct zb_tokenizer *tok, const json_t *o,
                               const char *key, const char *def,
                               struct tok_buf *value)
{
    const json_t *v = json_object_get(o, key);

    if (json_is_string(v)) {
        return zb_tok_buf_add(value, json_string_value(v),
                              json_string_length(v));
    }
    if (def == NULL || (v != NULL && !json_is_null(v))) {
        return zb_fail(ZB_ECONFIG, "%s: %s with a text as '%s' is missing",
                       tok->name, zb_tok_type(o) ? zb_tok_type(o) : "a part",
                       key);
    }
    return zb_tok_buf_add(value, def, strlen(def));
}

/* PCRE2's memory is the library's. */
static void *pcre_alloc(size_t n, void *arg)
{
    (void)arg;
    return zb_alloc(n);
}

static void pcre_free(void *p, void *arg)
{
    (void)arg;
    zb_free(p);
}

/* ---- added tokens -------------------------------------------------------- */

/* What is looked for of a normalized token is its text normalized. */
static enum zb_status added_text(const struct zb_tokenizer *tok,
                                 const char *text, size_t n,
                                 struct tok_added *a)
{
    struct tok_buf buf[2] = {{0}, {0}};
    enum zb_status st = ZB_OK;

    if (a->normalized) {
        st = zb_tok_normalize(tok, text, n, buf, &text, &n);
    }
    if (st == ZB_OK) {
        a->text = zb_alloc(n + 1);
        st = a->text == NULL ? ZB_ENOMEM : ZB_OK;
    }
    if (st == ZB_OK) {
        memcpy(a->text, text, n);
        a->n = n;
    }
    zb_tok_buf_release(&buf[0]);
    zb_tok_buf_release(&buf[1]);
    return st;
}

static enum zb_status added_id(struct zb_tokenizer *tok, const json_t *entry,
                               const char *text, size_t n, int32_t *id_out)
{
    const json_t *id = json_object_get(entry, "id");
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    const struct tok_piece *p;

    if (value < 0 || value >= tok->vocab.max_ids) {
        return zb_fail(ZB_ECONFIG, "%s: added token '%.64s' has no usable id",
                       tok->name, text);
    }
    *id_out = (int32_t)value;
    p = value < tok->vocab.n_ids ? &tok->vocab.piece[value] : NULL;
    if (p == NULL || !p->is_there) {
        return zb_tok_vocab_add(&tok->vocab, *id_out, text, n);
    }
    return ZB_OK;
}

static enum zb_status added_add(struct zb_tokenizer *tok, const json_t *entry)
{
    const json_t *content = json_object_get(entry, "content");
    const char *text = json_string_value(content);
    size_t n = json_string_length(content);
    struct tok_added a = {0};
    struct tok_added_set *set;

    if (text == NULL || n == 0) {
        return zb_fail(ZB_ECONFIG, "%s: an added token has no content",
                       tok->name);
    }
    ZB_TRY(zb_tok_get_bool(tok, entry, "special", 0, &a.special));
    ZB_TRY(
        zb_tok_get_bool(tok, entry, "normalized", !a.special, &a.normalized));
    ZB_TRY(zb_tok_get_bool(tok, entry, "single_word", 0, &a.single_word));
    ZB_TRY(zb_tok_get_bool(tok, entry, "lstrip", 0, &a.lstrip));
    ZB_TRY(zb_tok_get_bool(tok, entry, "rstrip", 0, &a.rstrip));
    ZB_TRY(added_id(tok, entry, text, n, &a.id));
    tok->vocab.piece[a.id].is_special |= (uint8_t)a.special;
    ZB_TRY(added_text(tok, text, n, &a));
    if (a.n == 0) {
        zb_free(a.text);
        return ZB_OK;
    }
    set = a.normalized ? &tok->normalized : &tok->raw;
    set->item[set->n_items++] = a;
    return ZB_OK;
}

static enum zb_status added_init(struct zb_tokenizer *tok, const json_t *list)
{
    size_t n = json_array_size(list);

    if (n > MAX_ADDED) {
        return zb_fail(ZB_ECONFIG, "%s: %zu added tokens are too many",
                       tok->name, n);
    }
    tok->vocab.max_ids = zb_tok_max_ids(tok->vocab.n_tokens + n);
    tok->raw.item = zb_alloc_array(n, sizeof(*tok->raw.item));
    tok->normalized.item = zb_alloc_array(n, sizeof(*tok->normalized.item));
    if (tok->raw.item == NULL || tok->normalized.item == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        ZB_TRY(added_add(tok, json_array_get(list, i)));
    }
    zb_tok_added_sort(&tok->raw);
    zb_tok_added_sort(&tok->normalized);
    return ZB_OK;
}

/* ---- the file ------------------------------------------------------------ */

static enum zb_status init(struct zb_tokenizer *tok, const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *model = json_object_get(root, "model");

    if (!json_is_object(model)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: no object 'model': not a tokenizer.json",
                       tok->name);
    }
    tok->pcre = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (tok->pcre == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(zb_tok_norms_init(tok, json_object_get(root, "normalizer")));
    ZB_TRY(zb_tok_steps_init(tok, pre));
    ZB_TRY(zb_tok_decs_init(tok, json_object_get(root, "decoder")));
    ZB_TRY(zb_tok_vocab_init(&tok->vocab, model, zb_tok_has_bytes(pre),
                             tok->name));
    return added_init(tok, json_object_get(root, "added_tokens"));
}

enum zb_status zb_tokenizer_parse(const char *json, size_t n, const char *name,
                                  struct zb_tokenizer **tok_out)
{
    struct zb_tokenizer *tok;
    json_error_t error;
    json_t *root;
    enum zb_status st;

    if (n > MAX_BYTES) {
        return zb_fail(ZB_ECONFIG, "%s: more than 256 MiB", name);
    }
    root = json_loadb(json, n, 0, &error);
    if (root == NULL) {
        return zb_fail(ZB_ECONFIG, "%s: line %d: %s", name, error.line,
                       error.text);
    }
    tok = zb_alloc(sizeof(*tok));
    st = tok == NULL ? ZB_ENOMEM : ZB_OK;
    if (st == ZB_OK) {
        tok->name = zb_strdup(name);
        st = tok->name == NULL ? ZB_ENOMEM : init(tok, root);
    }
    json_decref(root);
    if (st != ZB_OK) {
        zb_tokenizer_free(tok);
        return st;
    }
    *tok_out = tok;
    return ZB_OK;
}

enum zb_status zb_tokenizer_load(const char *path,
                                 struct zb_tokenizer **tok_out)
{
    struct zb_mapped file;
    enum zb_status st;

    ZB_TRY(zb_mapped_open(path, &file));
    st = zb_tokenizer_parse((const char *)file.bytes, (size_t)file.n_bytes,
                            path, tok_out);
    zb_mapped_close(&file);
    return st;
}

void zb_tokenizer_free(struct zb_tokenizer *tok)
{
    if (tok == NULL) {
        return;
    }
    zb_tok_norms_release(tok);
    zb_tok_steps_release(tok);
    zb_tok_decs_release(tok);
    zb_tok_vocab_release(&tok->vocab);
    zb_tok_added_release(&tok->raw);
    zb_tok_added_release(&tok->normalized);
    pcre2_general_context_free(tok->pcre);
    zb_free(tok->name);
    zb_free(tok);
}

int32_t zb_tokenizer_n_ids(const struct zb_tokenizer *tok)
{
    return tok->vocab.n_ids;
}

static int32_t find_added(const struct tok_added_set *set, const char *token)
{
    for (size_t i = 0; i < set->n_items; i++) {
        if (strcmp(set->item[i].text, token) == 0) {
            return set->item[i].id;
        }
    }
    return -1;
}

int32_t zb_tokenizer_find(const struct zb_tokenizer *tok, const char *token)
{
    int32_t id = find_added(&tok->raw, token);

    if (id < 0) {
        id = find_added(&tok->normalized, token);
    }
    for (int32_t i = 0; i < tok->vocab.n_ids && id < 0; i++) {
        if (zb_tok_is_spelt(&tok->vocab, i, token)) {
            id = i;
        }
    }
    return id;
}
