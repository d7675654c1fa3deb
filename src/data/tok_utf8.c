/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "data/tok_int.h"

#include <utf8proc.h>

#include "zb/mem.h"

enum zb_status zb_tok_buf_add(struct tok_buf *b, const void *bytes, size_t n)
{
    if (n > SIZE_MAX / 4 - b->n) {
        return zb_fail(ZB_ENOMEM, "text of %zu and %zu bytes", b->n, n);
    }
    if (b->at == NULL || b->n + n + 1 > b->cap) {
        size_t cap = 2 * (b->n + n) + 64;
        char *at = zb_realloc_array(b->at, b->cap, cap, 1);

        if (at == NULL) {
            return ZB_ENOMEM;
        }
        b->at = at;
        b->cap = cap;
    }
    if (n > 0) {
        memcpy(b->at + b->n, bytes, n);
    }
    b->n += n;
    b->at[b->n] = '\0';
    return ZB_OK;
}

void zb_tok_buf_release(struct tok_buf *b)
{
    zb_free(b->at);
    memset(b, 0, sizeof(*b));
}

uint32_t zb_tok_char(const char *text, size_t *n_out)
{
    const unsigned char *p = (const unsigned char *)text;

    *n_out = tok_char_bytes(p[0]);
    switch (*n_out) {
    case 1:
        return p[0];
    case 2:
        return (p[0] & 0x1fU) << 6 | (p[1] & 0x3fU);
    case 3:
        return (p[0] & 0x0fU) << 12 | (p[1] & 0x3fU) << 6 | (p[2] & 0x3fU);
    default:
        return (p[0] & 0x07U) << 18 | (p[1] & 0x3fU) << 12 |
               (p[2] & 0x3fU) << 6 | (p[3] & 0x3fU);
    }
}

size_t zb_tok_put_char(uint32_t c, char *p)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c,
                                        (utf8proc_uint8_t *)p);
}

size_t zb_tok_valid_char(const unsigned char *p, const unsigned char *end)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n;
    uint32_t c;

    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 0;
    }
    n = tok_char_bytes(p[0]);
    if ((size_t)(end - p) < n) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    c = zb_tok_char((const char *)p, &n);
    return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

size_t zb_tok_valid(const char *text, size_t n)
{
    const unsigned char *begin = (const unsigned char *)text, *p = begin;
    const unsigned char *end = begin + n;

    while (p < end) {
        uint64_t w;
        size_t len;

        while (end - p >= 8) {
            memcpy(&w, p, 8);
            if ((w & 0x8080808080808080U) != 0) {
                break;
            }
            p += 8;
        }
        if (p == end) {
            break;
        }
        len = zb_tok_valid_char(p, end);
        if (len == 0) {
            break;
        }
        p += len;
    }
    return (size_t)(p - begin);
}

size_t zb_tok_broken_bytes(const unsigned char *p, const unsigned char *end)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t n = 1, len;

    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 1;
    }
    len = tok_char_bytes(p[0]);
    /* The second byte of some is bounded: no overlong forms, no surrogates,
     * nothing after U+10FFFF. */
    lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : lo;
    hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : hi;
    while (n < len && p + n < end && p[n] >= lo && p[n] <= hi) {
        n++;
        lo = 0x80;
        hi = 0xbf;
    }
    return n;
}

int zb_tok_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int zb_tok_is_word(uint32_t c)
{
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return 1;
    default:
        return c == 0x200c || c == 0x200d; /* joiners */
    }
}

/* Bytes that print stand for themselves; the others, which are 0 to 0x20, 0x7f
 * to 0xa0 and 0xad, are the characters from 256 on. */
uint32_t zb_tok_char_of_byte(unsigned char b)
{
    if (b <= 0x20) {
        return 256U + b;
    }
    if (b >= 0x7f && b <= 0xa0) {
        return 256U + 0x21U + (b - 0x7fU);
    }
    return b == 0xad ? 323U : b;
}

int zb_tok_byte_of_char(uint32_t c)
{
    if (c > 323 || c <= 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) {
        return -1;
    }
    if (c < 256) {
        return (int)c;
    }
    c -= 256;
    return c <= 0x20 ? (int)c : c < 67 ? (int)(c - 0x21 + 0x7f) : 0xad;
}
