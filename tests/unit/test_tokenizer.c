/* SPDX-License-Identifier: MIT
 *
 * Tokenizers against ids of the `tokenizers` library (tests/golden/
 * tokenizers.json), and files that are damaged or ask for what is not there. */
#include "config.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/tokenizer.h"
#include "zbt.h"

/* ---- rig ----------------------------------------------------------------- */

struct ids {
    size_t n, cap;
    int32_t *id;
};

static enum zb_status take(void *arg, const int32_t *ids, size_t n)
{
    struct ids *list = arg;

    CU_ASSERT(n > 0);
    for (size_t i = 0; i < n; i++) {
        ZB_TRY(zb_grow(&list->id, list->n, &list->cap, sizeof(*list->id)));
        list->id[list->n++] = ids[i];
    }
    return ZB_OK;
}

static json_t *golden(void)
{
    json_error_t error;
    json_t *root =
        json_load_file(zbt_source_path("tests/golden/tokenizers.json"),
                       JSON_ALLOW_NUL, &error);

    if (root == NULL) {
        printf("%s\n", error.text);
    }
    CU_ASSERT_PTR_NOT_NULL_FATAL(root);
    return root;
}

static struct zb_tokenizer *parse(const json_t *json)
{
    char *text = json_dumps(json, 0);
    struct zb_tokenizer *tok = NULL;

    ZBT_OK(zb_tokenizer_parse(text, strlen(text), "t.json", &tok));
    free(text);
    return tok;
}

static int is_same(const struct ids *got, const json_t *want)
{
    if (got->n != json_array_size(want)) {
        return 0;
    }
    for (size_t i = 0; i < got->n; i++) {
        if (got->id[i] != json_integer_value(json_array_get(want, i))) {
            return 0;
        }
    }
    return 1;
}

static void print_ids(const char *name, const json_t *text,
                      const struct ids *got, const json_t *want)
{
    char *dump = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    char *list = json_dumps(want, JSON_COMPACT);

    printf("\n%s: %s\n  want %s\n  got  ", name, dump, list);
    for (size_t i = 0; i < got->n; i++) {
        printf("%d,", (int)got->id[i]);
    }
    printf("\n");
    free(dump);
    free(list);
}

static void encode_all(const json_t *texts, const json_t *c)
{
    struct zb_tokenizer *tok = parse(json_object_get(c, "tokenizer"));
    const char *name = json_string_value(json_object_get(c, "name"));
    struct zb_encoder *enc = NULL;
    struct ids got = {0};

    ZBT_OK(zb_encoder_new(tok, &enc));
    /* The second time from the cache. */
    for (size_t k = 0; k < 2 * json_array_size(texts); k++) {
        size_t i = k % json_array_size(texts);
        const json_t *text = json_array_get(texts, i);
        const json_t *want = json_array_get(json_object_get(c, "ids"), i);

        got.n = 0;
        ZBT_OK(zb_encode(enc, json_string_value(text), json_string_length(text),
                         take, &got));
        CU_ASSERT(is_same(&got, want));
        if (!is_same(&got, want)) {
            print_ids(name, text, &got, want);
        }
    }
    zb_free(got.id);
    zb_encoder_free(enc);
    zb_tokenizer_free(tok);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void ids_are_those_of_the_library(void)
{
    json_t *root = golden();
    const json_t *cases = json_object_get(root, "cases");

    CU_ASSERT(json_array_size(cases) >= 15);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        encode_all(json_object_get(root, "texts"), json_array_get(cases, i));
    }
    json_decref(root);
}

/* ---- decoding ------------------------------------------------------------ */

static void decode_all(const json_t *c)
{
    struct zb_tokenizer *tok = parse(json_object_get(c, "tokenizer"));
    const json_t *lists = json_object_get(c, "ids");
    int32_t ids[4096];

    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *list = json_array_get(lists, i);
        const json_t *want = json_array_get(json_object_get(c, "decoded"), i);
        size_t n = json_array_size(list);
        char *got = NULL;

        CU_ASSERT_FATAL(n <= ZB_COUNT_OF(ids));
        for (size_t k = 0; k < n; k++) {
            ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
        }
        ZBT_OK(zb_decode(tok, ids, n, 1, &got));
        CU_ASSERT_STRING_EQUAL(got, json_string_value(want));
        if (strcmp(got, json_string_value(want)) != 0) {
            printf("\n%s %zu: '%s', not '%s'\n",
                   json_string_value(json_object_get(c, "name")), i, got,
                   json_string_value(want));
        }
        zb_free(got);
    }
    zb_tokenizer_free(tok);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void texts_are_those_of_the_library(void)
{
    json_t *root = golden();
    const json_t *cases = json_object_get(root, "cases");

    for (size_t i = 0; i < json_array_size(cases); i++) {
        decode_all(json_array_get(cases, i));
    }
    json_decref(root);
}

/* ---- small tokenizers written here --------------------------------------- */

#define MODEL                                                                  \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"         \
    "\"abab\":3,\"\xc4\xa0\":4,\"\xe2\x96\x81\":5},\"merges\":[\"a b\","       \
    "[\"ab\",\"ab\"]]}"

static struct ids encode(const char *json, const char *text)
{
    struct zb_tokenizer *tok = NULL;
    struct zb_encoder *enc = NULL;
    struct ids got = {0};

    ZBT_OK(zb_tokenizer_parse(json, strlen(json), "t.json", &tok));
    ZBT_OK(zb_encoder_new(tok, &enc));
    ZBT_OK(zb_encode(enc, text, strlen(text), take, &got));
    zb_encoder_free(enc);
    zb_tokenizer_free(tok);
    return got;
}

static void unknown_characters_without_unk_vanish(void)
{
    /* What is left becomes neighbours, and merges. */
    struct ids got = encode("{" MODEL "}", "a?bxab");

    CU_ASSERT(got.n == 1 && got.id[0] == 3);
    zb_free(got.id);
}

/* n log n, also for one word of a million bytes. */
static void long_word_is_merged_like_a_short_one(void)
{
    size_t n = 1 << 20;
    char *text = malloc(n + 1);
    struct ids got;

    for (size_t i = 0; i < n; i++) {
        text[i] = "ab"[i % 2];
    }
    text[n] = '\0';
    got = encode("{" MODEL "}", text);
    CU_ASSERT_EQUAL(got.n, n / 4);
    for (size_t i = 0; i < got.n; i++) {
        CU_ASSERT_FATAL(got.id[i] == 3);
    }
    zb_free(got.id);
    free(text);
}

static void tokens_are_found_by_their_spelling(void)
{
    static const char json[] =
        "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
        "\"added_tokens\":[{\"id\":9,\"content\":\"<|e|>\","
        "\"special\":true}]," MODEL "}";
    struct zb_tokenizer *tok = NULL;

    ZBT_OK(zb_tokenizer_parse(json, strlen(json), "t.json", &tok));
    CU_ASSERT_EQUAL(zb_tokenizer_n_ids(tok), 10);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, "<|e|>"), 9);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, "ab"), 2);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, "\xc4\xa0"), 4);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, "\xe2\x96\x81"), 5);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, " "), -1);
    CU_ASSERT_EQUAL(zb_tokenizer_find(tok, "abb"), -1);
    zb_tokenizer_free(tok);
}

static void text_that_is_not_utf8_names_its_byte(void)
{
    static const char *const bad[] = {"abc\xff",         "abc\xc0\x80",
                                      "abc\xed\xa0\x80", "abc\xf4\x90\x80\x80",
                                      "abc\xe2\x96",     "abc\x80"};
    static const char json[] = "{" MODEL "}";
    struct zb_tokenizer *tok = NULL;
    struct zb_encoder *enc = NULL;
    struct ids got = {0};

    ZBT_OK(zb_tokenizer_parse(json, strlen(json), "t.json", &tok));
    ZBT_OK(zb_encoder_new(tok, &enc));
    for (size_t i = 0; i < ZB_COUNT_OF(bad); i++) {
        CU_ASSERT_EQUAL(zb_encode(enc, bad[i], strlen(bad[i]), take, &got),
                        ZB_ECONFIG);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "byte 3: 0x"));
    }
    CU_ASSERT_EQUAL(got.n, 0);
    zb_encoder_free(enc);
    zb_tokenizer_free(tok);
}

/* ---- refusals ------------------------------------------------------------ */

static int refuses(const char *json, const char *word)
{
    struct zb_tokenizer *tok = NULL;
    enum zb_status st = zb_tokenizer_parse(json, strlen(json), "t.json", &tok);
    int is_good = st == ZB_ECONFIG && tok == NULL && zb_mem_live() == 0 &&
                  strstr(zb_error_text(), "t.json: ") != NULL &&
                  strstr(zb_error_text(), word) != NULL;

    if (!is_good) {
        printf("\n%s: %d '%s'\n", json, st, zb_error_text());
    }
    return is_good;
}

static void damaged_models_are_refused_by_name(void)
{
#define VOCAB "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":"
    static const char *const rows[][2] = {
        {"{", "line 1"},
        {"[]", "not a tokenizer.json"},
        {"{\"model\":{}}", "'vocab'"},
        {"{\"model\":{\"vocab\":{},\"merges\":{}}}", "'merges'"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "'a'"},
        {"{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", "'a'"},
        {"{\"model\":{\"vocab\":{\"a\":\"b\"},\"merges\":[]}}", "'a'"},
        {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "id 1"},
        {VOCAB "[\"a c\"]}}", "merges[0] ('a' and 'c')"},
        {VOCAB "[\"b a\"]}}", "merges[0]"},
        {VOCAB "[\"a b\",\"ab\"]}}", "merges[1] is no pair"},
        {VOCAB "[[\"a\",\"b\",\"b\"]]}}", "merges[0] is no pair"},
        {VOCAB "[[\"a\",1]]}}", "merges[0] is no pair"},
        {VOCAB "[],\"type\":\"WordPiece\"}}", "WordPiece"},
        {VOCAB "[],\"dropout\":0.1}}", "dropout"},
        {VOCAB "[],\"end_of_word_suffix\":\"</w>\"}}", "end_of_word_suffix"},
        {VOCAB "[],\"continuing_subword_prefix\":\"##\"}}", "subword_prefix"},
        {VOCAB "[],\"unk_token\":\"u\"}}", "'u'"},
        {VOCAB "[]},\"added_tokens\":[{\"content\":\"x\"}]}", "'x'"},
        {VOCAB "[]},\"added_tokens\":[{\"id\":5}]}", "no content"},
        {VOCAB "[]},\"added_tokens\":[{\"id\":5,\"content\":\"x\","
               "\"special\":1}]}",
         "special"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        CU_ASSERT(refuses(rows[i][0], rows[i][1]));
    }
}

#define SPLIT(pattern)                                                         \
    "{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"" pattern "\"}}}"

static void missing_features_are_refused_by_name(void)
{
    static const char *const rows[][2] = {
        {"{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}}", "Lowercase"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":"
         "{\"Regex\":\"a\"},\"content\":\"\"}}",
         "String"},
        {"{" MODEL ",\"normalizer\":{}}", "(none)"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}",
         "BertPreTokenizer"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\","
         "\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
         "{\"type\":\"ByteLevel\"}]}}",
         "more than one ByteLevel"},
        {SPLIT("\\\\w+"), "\\w in the pattern '\\w+'"},
        {SPLIT("\\\\bx"), "\\b"},
        {SPLIT("[a[^b]]"), "[^...] in a set"},
        {SPLIT("[[:alpha:]]"), "[:...:] in a set"},
        {SPLIT("[a-z&&b]"), "&&"},
        {SPLIT("[]a]"), "empty set"},
        {SPLIT("[a"), "without an end"},
        {SPLIT("(?<n>a)"), "group of its kind"},
        {SPLIT("(?x: a)"), "group of its kind"},
        {SPLIT("a{,2}"), "{,n}"},
        {SPLIT("a{1,2}+"), "{n,m}"},
        {SPLIT("\\\\pL"), "\\p without {}"},
        {SPLIT("(a"), "place"},
        {SPLIT("a\\\\"), "backslash"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        CU_ASSERT(refuses(rows[i][0], rows[i][1]));
    }
}

static void unsupported_decoder_is_named_when_it_is_used(void)
{
    static const char json[] =
        "{\"decoder\":{\"type\":\"WordPiece\"}," MODEL "}";
    struct zb_tokenizer *tok = NULL;
    char *text = NULL;
    const int32_t id = 0;

    ZBT_OK(zb_tokenizer_parse(json, strlen(json), "t.json", &tok));
    CU_ASSERT_EQUAL(zb_decode(tok, &id, 1, 0, &text), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "decoder WordPiece"));
    zb_tokenizer_free(tok);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static enum zb_status use(const char *json, const char *text)
{
    struct zb_tokenizer *tok = NULL;
    struct zb_encoder *enc = NULL;
    struct ids got = {0};
    char *back = NULL;
    enum zb_status st = zb_tokenizer_parse(json, strlen(json), "t.json", &tok);

    if (st == ZB_OK) {
        st = zb_encoder_new(tok, &enc);
    }
    if (st == ZB_OK) {
        st = zb_encode(enc, text, strlen(text), take, &got);
    }
    if (st == ZB_OK) {
        st = zb_decode(tok, got.id, got.n, 1, &back);
    }
    zb_free(back);
    zb_free(got.id);
    zb_encoder_free(enc);
    zb_tokenizer_free(tok);
    return st;
}

static void failing_allocation_leaves_nothing(void)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":"
        "[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":\"a\"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\"},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
        "{\"type\":\"Metaspace\"},{\"type\":\"ByteFallback\"},"
        "{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":0}]},"
        "\"added_tokens\":[{\"id\":9,\"content\":\"<e>\"}]," MODEL "}";
    uint64_t k;
    int n_failed = 0;

    for (k = 1; k < 1000; k++) {
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = use(json, "ab e\xcc\x81<e>abab ab");
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        n_failed += failed;
        /* Without room for its compiler's code PCRE2 interprets. */
        CU_ASSERT(failed ? st == ZB_ENOMEM || st == ZB_OK : st == ZB_OK);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), 0);
        if (!failed) {
            break;
        }
    }
    CU_ASSERT(n_failed > 20 && k < 1000);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(ids_are_those_of_the_library),
        ZBT_CASE(texts_are_those_of_the_library),
        ZBT_CASE(unknown_characters_without_unk_vanish),
        ZBT_CASE(long_word_is_merged_like_a_short_one),
        ZBT_CASE(tokens_are_found_by_their_spelling),
        ZBT_CASE(text_that_is_not_utf8_names_its_byte),
        ZBT_CASE(damaged_models_are_refused_by_name),
        ZBT_CASE(missing_features_are_refused_by_name),
        ZBT_CASE(unsupported_decoder_is_named_when_it_is_used),
        ZBT_CASE(failing_allocation_leaves_nothing),
    };

    return zbt_run("tokenizer", cases, ZB_COUNT_OF(cases));
}
