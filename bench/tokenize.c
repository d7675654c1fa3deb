/* SPDX-License-Identifier: MIT
 *
 * Speed of a tokenizer on one core:
 *
 *     bench/tokenize TOKENIZER.json FILE [ROUNDS]
 *     bench/tokenize -p TOKENIZER.json FILE       prints the ids, one a line
 *
 * Prints the time to load, and MB of text per second of processor time: of the
 * first round, which begins without a cache, and of the fastest.
 * bench/peers/tokenize.py measures the `tokenizers` library beside it. */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "zb/tokenizer.h"
#include "zb/tokens.h"

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum zb_status count(void *arg, const int32_t *ids, size_t n)
{
    (void)ids;
    *(size_t *)arg += n;
    return ZB_OK;
}

static enum zb_status print(void *arg, const int32_t *ids, size_t n)
{
    (void)arg;
    for (size_t i = 0; i < n; i++) {
        printf("%d\n", (int)ids[i]);
    }
    return ZB_OK;
}

static enum zb_status measure(const struct zb_tokenizer *tok, const char *text,
                              size_t n, long n_rounds)
{
    double first_s = 0, best_s = 0;
    struct zb_encoder *enc;
    size_t n_ids = 0;

    ZB_TRY(zb_encoder_new(tok, &enc));
    for (long i = 0; i < n_rounds; i++) {
        double begin_s = now_s(), s;
        enum zb_status st;

        n_ids = 0;
        st = zb_encode(enc, text, n, count, &n_ids);
        s = now_s() - begin_s;
        if (st != ZB_OK) {
            zb_encoder_free(enc);
            return st;
        }
        first_s = i == 0 ? s : first_s;
        best_s = i == 0 || s < best_s ? s : best_s;
    }
    zb_encoder_free(enc);
    printf("bytes %zu tokens %zu first_MB_per_s %.2f best_MB_per_s %.2f\n", n,
           n_ids, 1e-6 * (double)n / first_s, 1e-6 * (double)n / best_s);
    return ZB_OK;
}

static enum zb_status run(const char *tok_path, const char *path, int is_print,
                          long n_rounds)
{
    struct zb_tokenizer *tok = NULL;
    struct zb_tokens *file = NULL;
    struct zb_encoder *enc = NULL;
    double begin_s = now_s();
    enum zb_status st = zb_tokenizer_load(tok_path, &tok);

    if (st == ZB_OK && !is_print) {
        printf("load_ms %.1f\n", 1e3 * (now_s() - begin_s));
    }
    if (st == ZB_OK) {
        st = zb_tokens_open(path, ZB_DATA_TEXT, &file);
    }
    if (st == ZB_OK) {
        const char *text = zb_tokens_text(file);
        size_t n = (size_t)zb_tokens_info(file).n_tokens;

        if (!is_print) {
            st = measure(tok, text, n, n_rounds);
        } else if ((st = zb_encoder_new(tok, &enc)) == ZB_OK) {
            st = zb_encode(enc, text, n, print, NULL);
        }
    }
    zb_encoder_free(enc);
    zb_tokens_close(file);
    zb_tokenizer_free(tok);
    return st;
}

int main(int argc, char **argv)
{
    int is_print = argc > 1 && strcmp(argv[1], "-p") == 0;
    char **arg = argv + 1 + is_print;

    if (argc - is_print < 3) {
        fprintf(stderr, "usage: tokenize [-p] TOKENIZER.json FILE [ROUNDS]\n");
        return 2;
    }
    if (run(arg[0], arg[1], is_print,
            arg[2] != NULL && !is_print ? strtol(arg[2], NULL, 10) : 5) !=
        ZB_OK) {
        fprintf(stderr, "tokenize: %s\n", zb_error_text());
        return 1;
    }
    return 0;
}
