/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/npy.h"

#include <inttypes.h>
#include <string.h>

#include "data/data_int.h"
#include "zb/mem.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
/* Headers that NumPy writes for plain arrays have 118 bytes. */
#define MAX_HEADER (1 << 20)

/* The text of the dictionary: at .. end - 1 of the file. */
struct scan {
    const struct zb_mapped *file;
    int64_t at, end;
};

static enum zb_status bad(const struct scan *s, const char *what)
{
    return zb_fail(ZB_ECONFIG, "%s: byte %" PRId64 ": %s", s->file->path, s->at,
                   what);
}

int zb_npy_is(const struct zb_mapped *file)
{
    return file->n_bytes >= MAGIC_BYTES &&
           memcmp(file->bytes, MAGIC, MAGIC_BYTES) == 0;
}

static int peek(struct scan *s)
{
    while (s->at < s->end &&
           (s->file->bytes[s->at] == ' ' || s->file->bytes[s->at] == '\n')) {
        s->at++;
    }
    return s->at < s->end ? s->file->bytes[s->at] : -1;
}

static int take(struct scan *s, int c)
{
    if (peek(s) != c) {
        return 0;
    }
    s->at++;
    return 1;
}

/* A quoted word without escapes, at most max - 1 bytes. */
static enum zb_status take_word(struct scan *s, char *word, int max)
{
    int quote = peek(s), n = 0;

    if (quote != '\'' && quote != '"') {
        return bad(s, "the header has no quoted word here");
    }
    s->at++;
    while (s->at < s->end && s->file->bytes[s->at] != quote) {
        if (n == max - 1) {
            return bad(s, "the header has too long a word");
        }
        word[n++] = (char)s->file->bytes[s->at++];
    }
    word[n] = '\0';
    return take(s, quote) ? ZB_OK : bad(s, "the header ends in a word");
}

/* '<i4', '|u1' and the like. */
static enum zb_status take_descr(struct scan *s, struct zb_npy_info *npy)
{
    char word[16];

    if (peek(s) == '[') {
        return bad(s, "records are not supported, only arrays of numbers");
    }
    ZB_TRY(take_word(s, word, sizeof(word)));
    if (word[0] == '>' || strlen(word) != 3 ||
        memchr("iufb", word[1], 4) == NULL ||
        memchr("1248", word[2], 4) == NULL ||
        (word[1] == 'f' && word[2] == '1') ||
        (word[1] == 'b' && word[2] != '1')) {
        return zb_fail(ZB_ECONFIG,
                       "%s: byte %" PRId64 ": elements of type '%s' are not "
                       "supported",
                       s->file->path, s->at, word);
    }
    npy->kind = word[1];
    npy->width = word[2] - '0';
    return ZB_OK;
}

static enum zb_status take_bool(struct scan *s, int *value)
{
    static const struct {
        const char *word;
        int64_t n;
    } words[] = {{"False", 5}, {"True", 4}};

    peek(s);
    for (int i = 0; i < 2; i++) {
        if (s->end - s->at >= words[i].n &&
            memcmp(s->file->bytes + s->at, words[i].word, (size_t)words[i].n) ==
                0) {
            s->at += words[i].n;
            *value = i;
            return ZB_OK;
        }
    }
    return bad(s, "the header has neither True nor False here");
}

static enum zb_status take_int(struct scan *s, int64_t *value)
{
    int64_t v = 0;
    int c = peek(s);

    if (c < '0' || c > '9') {
        return bad(s, "the header has no size here");
    }
    for (; c >= '0' && c <= '9'; c = peek(s)) {
        if (v > (INT64_MAX - 9) / 10) {
            return bad(s, "a size is out of range");
        }
        v = 10 * v + (c - '0');
        s->at++;
    }
    take(s, 'L'); /* as Python 2 wrote it */
    *value = v;
    return ZB_OK;
}

static enum zb_status take_shape(struct scan *s, struct zb_npy_info *npy)
{
    npy->n_elems = 1;
    npy->n_dims = 0;
    if (!take(s, '(')) {
        return bad(s, "the header has no shape here");
    }
    while (!take(s, ')')) {
        int64_t dim = 0;

        if (npy->n_dims == ZB_NPY_MAX_DIMS) {
            return bad(s, "more than 8 dimensions");
        }
        ZB_TRY(take_int(s, &dim));
        if (dim > 0 && npy->n_elems > INT64_MAX / 8 / dim) {
            return bad(s, "the shape is out of range");
        }
        npy->n_elems *= dim;
        npy->dim[npy->n_dims++] = dim;
        if (!take(s, ',') && peek(s) != ')') {
            return bad(s, "the shape has neither ',' nor ')' here");
        }
    }
    return ZB_OK;
}

static enum zb_status take_entry(struct scan *s, struct zb_npy_info *npy,
                                 int *seen)
{
    char key[16];

    ZB_TRY(take_word(s, key, sizeof(key)));
    if (!take(s, ':')) {
        return bad(s, "the header has no ':' here");
    }
    if (strcmp(key, "descr") == 0) {
        *seen |= 1;
        return take_descr(s, npy);
    }
    if (strcmp(key, "fortran_order") == 0) {
        *seen |= 2;
        return take_bool(s, &npy->is_fortran);
    }
    if (strcmp(key, "shape") == 0) {
        *seen |= 4;
        return take_shape(s, npy);
    }
    return bad(s, "the header has an unknown key here");
}

static enum zb_status take_dict(struct scan *s, struct zb_npy_info *npy)
{
    int seen = 0;

    if (!take(s, '{')) {
        return bad(s, "the header is no dictionary");
    }
    while (!take(s, '}')) {
        ZB_TRY(take_entry(s, npy, &seen));
        if (!take(s, ',') && peek(s) != '}') {
            return bad(s, "the header has neither ',' nor '}' here");
        }
    }
    return seen == 7 ? ZB_OK
                     : bad(s, "the header lacks descr, fortran_order or shape");
}

enum zb_status zb_npy_parse(const struct zb_mapped *file,
                            struct zb_npy_info *npy_out)
{
    struct scan s = {.file = file, .at = MAGIC_BYTES};
    struct zb_npy_info npy = {0};
    int n_length;
    int64_t n = 0;

    if (file->n_bytes < MAGIC_BYTES + 6) {
        return bad(&s, "the header is cut off");
    }
    if (file->bytes[MAGIC_BYTES] < 1 || file->bytes[MAGIC_BYTES] > 3) {
        return bad(&s, "unknown version of the format");
    }
    n_length = file->bytes[MAGIC_BYTES] == 1 ? 2 : 4;
    s.at += 2;
    for (int i = n_length - 1; i >= 0; i--) {
        n = n << 8 | file->bytes[s.at + i];
    }
    s.at += n_length;
    if (n > MAX_HEADER || n > file->n_bytes - s.at) {
        return bad(&s, "the header is cut off");
    }
    s.end = npy.offset = s.at + n;
    ZB_TRY(take_dict(&s, &npy));
    if (npy.n_elems > (file->n_bytes - npy.offset) / npy.width) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %" PRId64 " bytes are too few for %" PRId64
                       " elements of %d bytes from byte %" PRId64 " on",
                       file->path, file->n_bytes, npy.n_elems, npy.width,
                       npy.offset);
    }
    *npy_out = npy;
    return ZB_OK;
}

/* ---- whole arrays -------------------------------------------------------- */

struct zb_npy {
    struct zb_mapped file;
    struct zb_npy_info info;
};

enum zb_status zb_npy_open(const char *path, struct zb_npy **a_out)
{
    struct zb_npy *a = zb_alloc(sizeof(*a));
    enum zb_status st;

    if (a == NULL) {
        return ZB_ENOMEM;
    }
    st = zb_mapped_open(path, &a->file);
    if (st != ZB_OK) {
        zb_free(a);
        return st;
    }
    st = zb_npy_is(&a->file)
             ? zb_npy_parse(&a->file, &a->info)
             : zb_fail(ZB_ECONFIG, "%s: is no .npy array file", path);
    if (st != ZB_OK) {
        zb_npy_close(a);
        return st;
    }
    *a_out = a;
    return ZB_OK;
}

void zb_npy_close(struct zb_npy *a)
{
    if (a != NULL) {
        zb_mapped_close(&a->file);
        zb_free(a);
    }
}

const struct zb_npy_info *zb_npy_info(const struct zb_npy *a)
{
    return &a->info;
}

static enum zb_status read_check(const struct zb_npy *a, int64_t first,
                                 int64_t n, int is_float)
{
    ZB_BUG_IF(first < 0 || n < 0 || first > a->info.n_elems - n,
              "elements %" PRId64 " + %" PRId64 " of %" PRId64, first, n,
              a->info.n_elems);
    if ((a->info.kind == 'f') != is_float) {
        return zb_fail(ZB_EINVAL, "%s: elements of type %c%d are no %s",
                       a->file.path, a->info.kind, a->info.width,
                       is_float ? "floating point numbers" : "integers");
    }
    return zb_mapped_check(&a->file);
}

/* binary16 by its definition: exact in float32. */
static float from_half(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, bits;
    float x;

    if (exponent == 0) {
        x = (float)(h & 0x3ff) * 0x1p-24f;
        return (h & 0x8000) != 0 ? -x : x;
    }
    bits = (uint32_t)(h & 0x8000) << 16 | (uint32_t)(h & 0x3ff) << 13 |
           (exponent == 31 ? 255 : exponent + 112) << 23;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float float_at(const unsigned char *p, int width)
{
    uint16_t half;
    float single;
    double twice;

    switch (width) {
    case 2:
        memcpy(&half, p, sizeof(half));
        return from_half(half);
    case 4:
        memcpy(&single, p, sizeof(single));
        return single;
    default:
        memcpy(&twice, p, sizeof(twice));
        return (float)twice;
    }
}

enum zb_status zb_npy_read_f32(const struct zb_npy *a, int64_t first, int64_t n,
                               float *out)
{
    int width = a->info.width;
    const unsigned char *p;

    ZB_TRY(read_check(a, first, n, 1));
    p = a->file.bytes + a->info.offset + first * width;
    for (int64_t i = 0; i < n; i++) {
        out[i] = float_at(p + i * width, width);
    }
    return ZB_OK;
}

/* The number at p; 0 when it is too great for int64_t. */
static int int_at(const unsigned char *p, int width, char kind, int64_t *v)
{
    uint64_t bits = 0;

    for (int i = width - 1; i >= 0; i--) {
        bits = bits << 8 | p[i];
    }
    if (kind == 'i' && width < 8 && bits >> (8 * width - 1) != 0) {
        bits |= ~UINT64_C(0) << (8 * width);
    }
    *v = (int64_t)bits;
    return kind == 'i' || *v >= 0;
}

enum zb_status zb_npy_read_i32(const struct zb_npy *a, int64_t first, int64_t n,
                               int32_t *out)
{
    int width = a->info.width;

    ZB_TRY(read_check(a, first, n, 0));
    for (int64_t i = 0; i < n; i++) {
        int64_t at = a->info.offset + (first + i) * width, v;

        if (!int_at(a->file.bytes + at, width, a->info.kind, &v) ||
            v < INT32_MIN || v > INT32_MAX) {
            return zb_fail(ZB_ECONFIG,
                           "%s: byte %" PRId64
                           ": the number does not fit into 32 bits",
                           a->file.path, at);
        }
        out[i] = (int32_t)v;
    }
    return ZB_OK;
}
