/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/tokens.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "data/data_int.h"
#include "zb/mem.h"

/* ---- types of numbers ---------------------------------------------------- */

#define TYPE_MAP(X)                                                            \
    X(U8, uint8_t, "uint8", 'u')                                               \
    X(I8, int8_t, "int8", 'i')                                                 \
    X(U16, uint16_t, "uint16", 'u')                                            \
    X(I16, int16_t, "int16", 'i')                                              \
    X(U32, uint32_t, "uint32", 'u')                                            \
    X(I32, int32_t, "int32", 'i')                                              \
    X(U64, uint64_t, "uint64", 'u')                                            \
    X(I64, int64_t, "int64", 'i')

enum type {
#define ZB_X(name, type, text, kind) TYPE_##name,
    TYPE_MAP(ZB_X)
#undef ZB_X
        N_TYPES
};

/* Read up to n numbers; returns how many came before the first that is not in
 * 0 .. limit - 1. A negative one is a huge uint64_t. */
#define ZB_X(name, type, text, kind)                                           \
    static int64_t read_##name(const unsigned char *from, int64_t n,           \
                               uint64_t limit, int32_t *out)                   \
    {                                                                          \
        for (int64_t i = 0; i < n; i++) {                                      \
            type v;                                                            \
                                                                               \
            memcpy(&v, from + i * (int64_t)sizeof(v), sizeof(v));              \
            if ((uint64_t)v >= limit) {                                        \
                return i;                                                      \
            }                                                                  \
            out[i] = (int32_t)v;                                               \
        }                                                                      \
        return n;                                                              \
    }
TYPE_MAP(ZB_X)
#undef ZB_X

static const struct {
    const char *text;
    char kind;
    int width;
    int64_t (*read)(const unsigned char *from, int64_t n, uint64_t limit,
                    int32_t *out);
} types[] = {
#define ZB_X(name, type, text, kind) {text, kind, sizeof(type), read_##name},
    TYPE_MAP(ZB_X)
#undef ZB_X
};

/* ---- opening ------------------------------------------------------------- */

struct zb_tokens {
    struct zb_mapped data;
    struct zb_mapped index; /* Megatron's; path NULL: none */
    enum type type;
    struct zb_tokens_info info;
};

static uint64_t get_le(const unsigned char *p, int n)
{
    uint64_t v = 0;

    for (int i = n - 1; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

static int ends_with(const char *path, const char *tail)
{
    size_t n = strlen(path), n_tail = strlen(tail);

    return n > n_tail && strcmp(path + n - n_tail, tail) == 0;
}

/* Tokens of `type` from byte `offset` on, as many as fit when n_tokens < 0. */
static enum zb_status set_tokens(struct zb_tokens *t, enum type type,
                                 int64_t offset, int64_t n_tokens)
{
    int64_t room = t->data.n_bytes - offset, width = types[type].width;

    if (n_tokens < 0) {
        if (room % width != 0) {
            return zb_fail(ZB_ECONFIG,
                           "%s: %" PRId64 " bytes are no whole number of %s",
                           t->data.path, room, types[type].text);
        }
        n_tokens = room / width;
    }
    if (n_tokens > room / width) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %" PRId64 " bytes are too few for %" PRId64
                       " tokens of %s from byte %" PRId64 " on",
                       t->data.path, t->data.n_bytes, n_tokens,
                       types[type].text, offset);
    }
    t->type = type;
    t->info.type = types[type].text;
    t->info.n_tokens = n_tokens;
    t->info.offset = offset;
    return ZB_OK;
}

#define LLMC_HEADER_BYTES 1024
#define LLMC_MAGIC_16 20240520
#define LLMC_MAGIC_32 20240801

static int is_llmc(const struct zb_mapped *file)
{
    uint64_t magic = file->n_bytes >= 4 ? get_le(file->bytes, 4) : 0;

    return magic == LLMC_MAGIC_16 || magic == LLMC_MAGIC_32;
}

static enum zb_status open_llmc(struct zb_tokens *t)
{
    const unsigned char *head = t->data.bytes;
    int is_32;
    uint64_t version, n;

    if (t->data.n_bytes < LLMC_HEADER_BYTES) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %" PRId64 " bytes are too few for llm.c's header "
                       "of 1024",
                       t->data.path, t->data.n_bytes);
    }
    is_32 = get_le(head, 4) == LLMC_MAGIC_32;
    version = get_le(head + 4, 4);
    n = get_le(head + 8, 4);
    if (version != (is_32 ? 7 : 1)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: byte 4: llm.c's version %" PRIu64
                       " of this kind of file is unknown",
                       t->data.path, version);
    }
    t->info.format = is_32 ? "llm.c version 7" : "llm.c version 1";
    return set_tokens(t, is_32 ? TYPE_U32 : TYPE_U16, LLMC_HEADER_BYTES,
                      (int64_t)n);
}

static enum zb_status open_npy(struct zb_tokens *t)
{
    struct zb_npy_info npy;

    ZB_TRY(zb_npy_parse(&t->data, &npy));
    if (npy.n_dims != 1) {
        return zb_fail(ZB_ECONFIG,
                       "%s: an array of %d dimensions; tokens have one",
                       t->data.path, npy.n_dims);
    }
    t->info.format = "npy";
    for (int i = 0; i < N_TYPES; i++) {
        if (types[i].kind == npy.kind && types[i].width == npy.width) {
            return set_tokens(t, i, npy.offset, npy.n_elems);
        }
    }
    return zb_fail(ZB_ECONFIG, "%s: elements of type %c%d are no tokens",
                   t->data.path, npy.kind, npy.width);
}

/* The Megatron index beside a .bin; NULL without one. */
static enum zb_status find_index(const char *path, char **index_out)
{
    *index_out = NULL;
    if (ends_with(path, ".bin")) {
        char *index = zb_format("%.*s.idx", (int)strlen(path) - 4, path);

        if (index == NULL) {
            return ZB_ENOMEM;
        }
        if (access(index, F_OK) == 0) {
            *index_out = index;
        } else {
            zb_free(index);
        }
    }
    return ZB_OK;
}

#define MEGATRON_MAGIC "MMIDIDX\0\0"
#define MEGATRON_MAGIC_BYTES 9
#define MEGATRON_HEADER_BYTES 34

static int is_megatron(const struct zb_mapped *file)
{
    return file->n_bytes >= MEGATRON_MAGIC_BYTES &&
           memcmp(file->bytes, MEGATRON_MAGIC, MEGATRON_MAGIC_BYTES) == 0;
}

static enum zb_status bad_index(const struct zb_tokens *t, int64_t at,
                                const char *what)
{
    return zb_fail(ZB_ECONFIG, "%s: byte %" PRId64 ": %s", t->index.path, at,
                   what);
}

/* Sequences must follow each other without a gap: then they are one row. */
static enum zb_status check_sequences(const struct zb_tokens *t, int64_t n,
                                      int width, int64_t *n_tokens_out)
{
    const unsigned char *sizes = t->index.bytes + MEGATRON_HEADER_BYTES;
    const unsigned char *places = sizes + 4 * n;
    int64_t n_tokens = 0;

    for (int64_t i = 0; i < n; i++) {
        int32_t size = (int32_t)get_le(sizes + 4 * i, 4);

        if (size < 0 || n_tokens > INT64_MAX / 16 - size) {
            return bad_index(t, MEGATRON_HEADER_BYTES + 4 * i,
                             "the size of a sequence is out of range");
        }
        if (get_le(places + 8 * i, 8) != (uint64_t)(n_tokens * width)) {
            return bad_index(t, MEGATRON_HEADER_BYTES + 4 * n + 8 * i,
                             "a sequence does not follow the one before it");
        }
        n_tokens += size;
    }
    *n_tokens_out = n_tokens;
    return ZB_OK;
}

static enum zb_status open_megatron(struct zb_tokens *t)
{
    static const enum type codes[] = {
        [1] = TYPE_U8,  [2] = TYPE_I8,  [3] = TYPE_I16,
        [4] = TYPE_I32, [5] = TYPE_I64, [8] = TYPE_U16};
    const unsigned char *head = t->index.bytes;
    uint64_t n_seq, n_doc, room;
    int64_t n_tokens = 0;
    int code;

    t->info.format = "Megatron";
    if (!is_megatron(&t->index) || t->index.n_bytes < MEGATRON_HEADER_BYTES) {
        return bad_index(t, 0, "is no Megatron index");
    }
    if (get_le(head + 9, 8) != 1) {
        return bad_index(t, 9, "unknown version of the format");
    }
    code = head[17];
    if (code < 1 || code > 8 || code == 6 || code == 7) {
        return bad_index(t, 17, "the type of numbers is none of tokens");
    }
    n_seq = get_le(head + 18, 8);
    n_doc = get_le(head + 26, 8);
    room = (uint64_t)t->index.n_bytes - MEGATRON_HEADER_BYTES;
    if (n_seq > room / 12 || n_doc > (room - 12 * n_seq) / 8) {
        return bad_index(t, 18, "the file is too short for its sequences");
    }
    ZB_TRY(check_sequences(t, (int64_t)n_seq, types[codes[code]].width,
                           &n_tokens));
    t->info.n_sequences = (int64_t)n_seq;
    t->info.n_documents = n_doc > 0 ? (int64_t)n_doc - 1 : 0;
    return set_tokens(t, codes[code], 0, n_tokens);
}

/* `t->data` is the index: it and what it is for change places. */
static enum zb_status open_by_index(struct zb_tokens *t)
{
    char *data = zb_strdup(t->data.path);
    size_t n = strlen(t->data.path);
    enum zb_status st;

    if (data == NULL) {
        return ZB_ENOMEM;
    }
    if (!ends_with(data, ".idx")) {
        st = zb_fail(ZB_ECONFIG,
                     "%s: a Megatron index whose name does not end with .idx",
                     data);
    } else {
        memcpy(data + n - 4, ".bin", 4);
        t->index = t->data;
        memset(&t->data, 0, sizeof(t->data));
        st = zb_mapped_open(data, &t->data);
    }
    zb_free(data);
    return st == ZB_OK ? open_megatron(t) : st;
}

static enum zb_status open_raw(struct zb_tokens *t, enum type type)
{
    char *index;
    enum zb_status st;

    ZB_TRY(find_index(t->data.path, &index));
    if (index != NULL) {
        st = zb_mapped_open(index, &t->index);
        zb_free(index);
        return st == ZB_OK ? open_megatron(t) : st;
    }
    t->info.format = "raw";
    return set_tokens(t, type, 0, -1);
}

static enum zb_status open_text(struct zb_tokens *t, enum zb_data_format format)
{
    const char *kind = zb_mapped_kind(&t->data);

    if (format != ZB_DATA_TEXT && kind != NULL) {
        return zb_fail(ZB_ECONFIG,
                       "%s: is %s, which is not read; data.format = text would "
                       "take its bytes as text",
                       t->data.path, kind);
    }
    if (format == ZB_DATA_TOKENS) {
        return zb_fail(ZB_ECONFIG,
                       "%s: is no file of tokens: neither llm.c, Megatron nor "
                       ".npy, nor raw by its name (.bin, .u16, .u32)",
                       t->data.path);
    }
    t->info.format = "text";
    t->info.is_text = 1;
    return set_tokens(t, TYPE_U8, 0, t->data.n_bytes);
}

static enum zb_status open_as(struct zb_tokens *t, enum zb_data_format format)
{
    static const struct {
        const char *tail;
        enum type type;
    } raw[] = {{".bin", TYPE_U16},
               {".u16", TYPE_U16},
               {".uint16", TYPE_U16},
               {".u32", TYPE_U32},
               {".uint32", TYPE_U32}};

    if (format == ZB_DATA_TEXT) {
        return open_text(t, format);
    }
    if (is_llmc(&t->data)) {
        return open_llmc(t);
    }
    if (zb_npy_is(&t->data)) {
        return open_npy(t);
    }
    if (is_megatron(&t->data)) {
        return open_by_index(t);
    }
    for (size_t i = 0; i < ZB_COUNT_OF(raw); i++) {
        if (ends_with(t->data.path, raw[i].tail)) {
            return open_raw(t, raw[i].type);
        }
    }
    return open_text(t, format);
}

enum zb_status zb_tokens_open(const char *path, enum zb_data_format format,
                              struct zb_tokens **t_out)
{
    struct zb_tokens *t = zb_alloc(sizeof(*t));
    enum zb_status st;

    if (t == NULL) {
        return ZB_ENOMEM;
    }
    t->info.n_sequences = t->info.n_documents = -1;
    st = zb_mapped_open(path, &t->data);
    if (st == ZB_OK) {
        st = open_as(t, format);
    }
    if (st != ZB_OK) {
        zb_tokens_close(t);
        return st;
    }
    t->info.id_limit = types[t->type].width == 1   ? 256
                       : types[t->type].width == 2 ? 65536
                                                   : INT64_C(1) << 31;
    *t_out = t;
    return ZB_OK;
}

void zb_tokens_close(struct zb_tokens *t)
{
    if (t == NULL) {
        return;
    }
    if (t->index.path != NULL) {
        zb_mapped_close(&t->index);
    }
    if (t->data.path != NULL) {
        zb_mapped_close(&t->data);
    }
    zb_free(t);
}

/* ---- reading ------------------------------------------------------------- */

struct zb_tokens_info zb_tokens_info(const struct zb_tokens *t)
{
    return t->info;
}

const char *zb_tokens_path(const struct zb_tokens *t)
{
    return t->data.path;
}

const char *zb_tokens_text(const struct zb_tokens *t)
{
    ZB_BUG_IF(!t->info.is_text, "%s is no text", t->data.path);
    return (const char *)t->data.bytes;
}

enum zb_status zb_tokens_check(const struct zb_tokens *t)
{
    return zb_mapped_check(&t->data);
}

enum zb_status zb_tokens_read(const struct zb_tokens *t, int64_t first,
                              int64_t n, int64_t limit, int32_t *ids_out)
{
    int width = types[t->type].width;
    int64_t at = t->info.offset + first * width, n_good;
    uint64_t value;

    ZB_BUG_IF(first < 0 || n < 0 || first > t->info.n_tokens - n,
              "tokens %" PRId64 " + %" PRId64 " of %" PRId64, first, n,
              t->info.n_tokens);
    if (n == 0) {
        return ZB_OK;
    }
    n_good =
        types[t->type].read(t->data.bytes + at, n, (uint64_t)limit, ids_out);
    if (n_good == n) {
        return ZB_OK;
    }
    at += n_good * width;
    value = get_le(t->data.bytes + at, width);
    if (types[t->type].kind == 'i' && width < 8 &&
        value >> (8 * width - 1) != 0) {
        value |= ~UINT64_C(0) << (8 * width);
    }
    return zb_fail(ZB_ECONFIG,
                   "%s: byte %" PRId64 ": token %" PRId64
                   " is not in 0 to %" PRId64,
                   t->data.path, at, (int64_t)value, limit - 1);
}
