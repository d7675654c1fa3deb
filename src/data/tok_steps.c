/* SPDX-License-Identifier: MIT
 *
 * Pre-tokenizers, from the file. */
#include "config.h"
#include "data/tok_int.h"

#include "zb/mem.h"

/* GPT-2's pattern, which ByteLevel brings with it. */
#define BYTE_LEVEL                                                             \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"       \
    "\\s+(?!\\S)|\\s+"

static enum zb_status refuse(const struct zb_tokenizer *tok, const char *what)
{
    return zb_fail(ZB_ECONFIG, "%s: pre_tokenizer %.64s is not supported",
                   tok->name, what);
}

/* `pattern` is PCRE2's, or with is_text the text itself. */
static enum zb_status compile(const struct zb_tokenizer *tok,
                              const char *pattern, size_t n, int is_text,
                              struct tok_step *step)
{
    uint32_t flags = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
    pcre2_compile_context *context;
    int error = 0;
    size_t at = 0;
    unsigned char text[128];

    context = pcre2_compile_context_create(tok->pcre);
    if (context == NULL) {
        return ZB_ENOMEM;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    flags |= is_text ? PCRE2_LITERAL
                     : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    step->re = pcre2_compile((const unsigned char *)pattern, n, flags, &error,
                             &at, context);
    pcre2_compile_context_free(context);
    if (step->re == NULL && error == PCRE2_ERROR_HEAP_FAILED) {
        return ZB_ENOMEM;
    }
    if (step->re == NULL) {
        pcre2_get_error_message(error, text, sizeof(text));
        return zb_fail(ZB_ECONFIG, "%s: pattern '%.200s', place %zu: %s",
                       tok->name, pattern, at, (char *)text);
    }
    /* Where there is no compiler for this machine, PCRE2 interprets. */
    step->has_jit = pcre2_jit_compile(step->re, PCRE2_JIT_COMPLETE) == 0;
    return ZB_OK;
}

static enum zb_status compile_regex(const struct zb_tokenizer *tok,
                                    const char *pattern, size_t n,
                                    struct tok_step *step)
{
    struct tok_buf b = {0};
    enum zb_status st = zb_tok_pattern(pattern, n, tok->name, &b);

    if (st == ZB_OK) {
        st = compile(tok, b.at, b.n, 0, step);
    }
    zb_tok_buf_release(&b);
    return st;
}

static enum zb_status get_behavior(const struct zb_tokenizer *tok,
                                   const json_t *json, enum tok_behavior def,
                                   enum tok_behavior *behavior)
{
    static const char *const names[] = {
        [TOK_ISOLATED] = "Isolated",
        [TOK_REMOVED] = "Removed",
        [TOK_CONTIGUOUS] = "Contiguous",
        [TOK_WITH_PREVIOUS] = "MergedWithPrevious",
        [TOK_WITH_NEXT] = "MergedWithNext",
    };
    const char *name = json_string_value(json_object_get(json, "behavior"));

    *behavior = def;
    if (name == NULL) {
        return ZB_OK;
    }
    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *behavior = (enum tok_behavior)i;
            return ZB_OK;
        }
    }
    return refuse(tok, name);
}

static enum zb_status init_split(struct zb_tokenizer *tok, const json_t *json,
                                 struct tok_step *step)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = json_object_get(pattern, "String");

    ZB_TRY(get_behavior(tok, json, TOK_ISOLATED, &step->behavior));
    ZB_TRY(zb_tok_get_bool(tok, json, "invert", 0, &step->invert));
    if (json_is_string(regex)) {
        return compile_regex(tok, json_string_value(regex),
                             json_string_length(regex), step);
    }
    if (!json_is_string(text) || json_string_length(text) == 0) {
        return refuse(tok, "Split without a pattern");
    }
    return compile(tok, json_string_value(text), json_string_length(text), 1,
                   step);
}

static enum zb_status init_bytes(struct zb_tokenizer *tok, const json_t *json,
                                 struct tok_step *step)
{
    int has_prefix, has_regex;

    step->kind = TOK_BYTES;
    ZB_TRY(zb_tok_get_bool(tok, json, "add_prefix_space", 1, &has_prefix));
    ZB_TRY(zb_tok_get_bool(tok, json, "use_regex", 1, &has_regex));
    step->prefix = has_prefix ? TOK_ALWAYS : TOK_NEVER;
    ZB_TRY(zb_tok_buf_add(&step->mark, " ", 1));
    return has_regex ? compile_regex(tok, BYTE_LEVEL, strlen(BYTE_LEVEL), step)
                     : ZB_OK;
}

static enum zb_status get_scheme(struct zb_tokenizer *tok, const json_t *json,
                                 enum tok_prefix *prefix)
{
    static const char *const names[] = {
        [TOK_NEVER] = "never", [TOK_FIRST] = "first", [TOK_ALWAYS] = "always"};
    const char *name =
        json_string_value(json_object_get(json, "prepend_scheme"));
    int has_prefix;

    if (name == NULL) {
        /* As older versions wrote it. */
        ZB_TRY(zb_tok_get_bool(tok, json, "add_prefix_space", 1, &has_prefix));
        *prefix = has_prefix ? TOK_ALWAYS : TOK_NEVER;
        return ZB_OK;
    }
    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *prefix = (enum tok_prefix)i;
            return ZB_OK;
        }
    }
    return refuse(tok, name);
}

static enum zb_status init_metaspace(struct zb_tokenizer *tok,
                                     const json_t *json, struct tok_step *step)
{
    int split;

    step->kind = TOK_METASPACE;
    step->behavior = TOK_WITH_NEXT;
    ZB_TRY(get_scheme(tok, json, &step->prefix));
    ZB_TRY(zb_tok_get_bool(tok, json, "split", 1, &split));
    ZB_TRY(
        zb_tok_get_text(tok, json, "replacement", "\xe2\x96\x81", &step->mark));
    if (step->mark.n == 0) {
        return refuse(tok, "Metaspace without a replacement");
    }
    return split ? compile(tok, step->mark.at, step->mark.n, 1, step) : ZB_OK;
}

static enum zb_status init_digits(struct zb_tokenizer *tok, const json_t *json,
                                  struct tok_step *step)
{
    int is_single;

    ZB_TRY(zb_tok_get_bool(tok, json, "individual_digits", 0, &is_single));
    step->behavior = is_single ? TOK_ISOLATED : TOK_CONTIGUOUS;
    return compile(tok, "\\p{N}", 5, 0, step);
}

static enum zb_status init_punctuation(struct zb_tokenizer *tok,
                                       const json_t *json,
                                       struct tok_step *step)
{
    static const char pattern[] = "[!-/:-@\\[-`{-~\\p{P}]";

    ZB_TRY(get_behavior(tok, json, TOK_ISOLATED, &step->behavior));
    return compile(tok, pattern, sizeof(pattern) - 1, 0, step);
}

static enum zb_status init_white(struct zb_tokenizer *tok, const json_t *json,
                                 struct tok_step *step)
{
    (void)json;
    step->behavior = TOK_REMOVED;
    return compile(tok, "\\p{White_Space}", 15, 0, step);
}

static const struct {
    const char *type;
    enum zb_status (*init)(struct zb_tokenizer *tok, const json_t *json,
                           struct tok_step *step);
} kinds[] = {{"Split", init_split},
             {"ByteLevel", init_bytes},
             {"Metaspace", init_metaspace},
             {"Digits", init_digits},
             {"Punctuation", init_punctuation},
             {"WhitespaceSplit", init_white}};

static enum zb_status step_add(struct zb_tokenizer *tok, const json_t *json)
{
    const char *type = zb_tok_type(json);

    if (tok->n_steps == TOK_MAX_STEPS) {
        return refuse(tok, "of more than 16 steps");
    }
    for (size_t i = 0; type != NULL && i < ZB_COUNT_OF(kinds); i++) {
        if (strcmp(type, kinds[i].type) == 0) {
            return kinds[i].init(tok, json, &tok->step[tok->n_steps++]);
        }
    }
    return refuse(tok, type != NULL ? type : "without a type");
}

static int is_sequence(const json_t *json)
{
    const char *type = zb_tok_type(json);

    return type != NULL && strcmp(type, "Sequence") == 0;
}

enum zb_status zb_tok_steps_init(struct zb_tokenizer *tok, const json_t *json)
{
    const json_t *entry;
    size_t i;
    int n_bytes = 0;

    if (json == NULL || json_is_null(json)) {
        return ZB_OK;
    }
    if (!is_sequence(json)) {
        return step_add(tok, json);
    }
    json_array_foreach(json_object_get(json, "pretokenizers"), i, entry)
    {
        ZB_TRY(step_add(tok, entry));
    }
    for (int k = 0; k < tok->n_steps; k++) {
        n_bytes += tok->step[k].kind == TOK_BYTES;
    }
    return n_bytes > 1 ? refuse(tok, "with more than one ByteLevel") : ZB_OK;
}

void zb_tok_steps_release(struct zb_tokenizer *tok)
{
    for (int i = 0; i < tok->n_steps; i++) {
        pcre2_code_free(tok->step[i].re);
        zb_tok_buf_release(&tok->step[i].mark);
    }
    tok->n_steps = 0;
}

static int is_bytes(const json_t *json)
{
    const char *type = zb_tok_type(json);

    return type != NULL && strcmp(type, "ByteLevel") == 0;
}

int zb_tok_has_bytes(const json_t *pre)
{
    const json_t *entry;
    size_t i;

    if (is_sequence(pre)) {
        json_array_foreach(json_object_get(pre, "pretokenizers"), i, entry)
        {
            if (is_bytes(entry)) {
                return 1;
            }
        }
    }
    return is_bytes(pre);
}
