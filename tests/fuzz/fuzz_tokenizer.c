/* SPDX-License-Identifier: MIT
 *
 * A tokenizer.json, and after the first NUL a text: parsed, encoded, decoded.
 */
#include "config.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/tokenizer.h"

/* ---- good inputs --------------------------------------------------------- */

static const char added[] =
    "{\"added_tokens\":[{\"id\":9,\"content\":\"<e>\",\"special\":true,"
    "\"lstrip\":true,\"rstrip\":true,\"single_word\":false,"
    "\"normalized\":false},{\"id\":10,\"content\":\"é\","
    "\"single_word\":true}],";
static const char model[] =
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"b\",\"fuse_unk\":true,"
    "\"byte_fallback\":true,\"ignore_merges\":false,\"dropout\":null,"
    "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"abab\":3,\"Ġ\":4,\"▁\":5,"
    "\"▁a\":6,\"<0x41>\":7,\"Ċ\":8},\"merges\":[\"a b\",[\"ab\",\"ab\"],"
    "\"▁ a\"]}";

/* What else is in the file, and a text. */
static const struct {
    const char *parts, *text;
} seeds[] = {
    {"\"pre_tokenizer\":{\"type\":\"ByteLevel\","
     "\"add_prefix_space\":true},\"decoder\":{\"type\":\"ByteLevel\"}",
     "aab ab don't <e> abababab"},
    {"\"normalizer\":{\"type\":\"NFC\"},"
     "\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[{\"type\":\"Split\","
     "\"pattern\":{\"Regex\":\"[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|a{1,"
     "3}\"},\"behavior\":\"MergedWithPrevious\",\"invert\":true},"
     "{\"type\":\"Digits\",\"individual_digits\":true},"
     "{\"type\":\"ByteLevel\",\"use_regex\":false},"
     "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}]}",
     "ab 12 é 가 .,! ab"},
    {"\"normalizer\":{\"type\":\"Sequence\","
     "\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"▁\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
     "\"content\":\"▁\"}]},\"decoder\":{\"type\":\"Sequence\","
     "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"▁\"},"
     "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
     "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}",
     "a ab A <e> aab x"},
    {"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"▁\","
     "\"prepend_scheme\":\"first\",\"split\":true},"
     "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"▁\","
     "\"prepend_scheme\":\"first\"}",
     " ab  a é"},
    {"\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}",
     "a b ab"},
};

size_t fuzz_seed(size_t i, const uint8_t **data_out)
{
    static char buf[4096];
    int n;

    if (i >= ZB_COUNT_OF(seeds)) {
        return 0;
    }
    n = snprintf(buf, sizeof(buf), "%s%s,%s}%c%s", added, seeds[i].parts,
                 model, '\0', seeds[i].text);
    *data_out = (const uint8_t *)buf;
    return (size_t)n;
}

/* ---- the target ---------------------------------------------------------- */

#define MAX_IDS 65536

struct ids {
    size_t n;
    int32_t limit;
    int32_t id[MAX_IDS];
};

/* Ids are those of the vocabulary; more than there is room for end it. */
static enum zb_status take(void *arg, const int32_t *ids, size_t n)
{
    struct ids *list = arg;

    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= list->limit) {
            abort();
        }
        if (list->n == MAX_IDS) {
            return zb_fail(ZB_EIO, "enough");
        }
        list->id[list->n++] = ids[i];
    }
    return ZB_OK;
}

static void encode(const struct zb_tokenizer *tok, const char *text, size_t n)
{
    static struct ids first, second;
    struct zb_encoder *enc = NULL;
    char *back = NULL;

    if (zb_encoder_new(tok, &enc) != ZB_OK) {
        abort();
    }
    first.n = second.n = 0;
    first.limit = second.limit = zb_tokenizer_n_ids(tok);
    if (zb_encode(enc, text, n, take, &first) == ZB_OK) {
        /* What is remembered changes nothing. */
        if (zb_encode(enc, text, n, take, &second) != ZB_OK ||
            first.n != second.n ||
            memcmp(first.id, second.id, first.n * sizeof(*first.id)) != 0) {
            abort();
        }
        if (zb_decode(tok, first.id, first.n, 1, &back) == ZB_OK) {
            zb_free(back);
        }
    }
    zb_encoder_free(enc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *json = (const char *)data;
    size_t n_json = n == 0 ? 0 : strnlen(json, n);
    int64_t before = zb_mem_live();
    struct zb_tokenizer *tok = NULL;

    if (zb_tokenizer_parse(json, n_json, "t.json", &tok) == ZB_OK) {
        if (n_json < n) {
            encode(tok, json + n_json + 1, n - n_json - 1);
        }
        zb_tokenizer_find(tok, "a");
        zb_tokenizer_free(tok);
    } else if (zb_error_text()[0] == '\0') {
        abort();
    }
    fuzz_check_live(before);
    return 0;
}
