/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "data/npy.h"

#include <inttypes.h>
#include <string.h>

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
static enum zb_status take_descr(struct scan *s, struct zb_npy *npy)
{
    char word[16];

    if (peek(s) == '[') {
        return bad(s, "records are not supported, only arrays of numbers");
    }
    ZB_TRY(take_word(s, word, sizeof(word)));
    if (word[0] == '>' || strlen(word) != 3 ||
        memchr("iufb", word[1], 4) == NULL ||
        memchr("1248", word[2], 4) == NULL) {
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

static enum zb_status take_shape(struct scan *s, struct zb_npy *npy)
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

static enum zb_status take_entry(struct scan *s, struct zb_npy *npy, int *seen)
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

static enum zb_status take_dict(struct scan *s, struct zb_npy *npy)
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
                            struct zb_npy *npy_out)
{
    struct scan s = {.file = file, .at = MAGIC_BYTES};
    struct zb_npy npy = {0};
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
