/* SPDX-License-Identifier: MIT
 *
 * zbrun --generate: text behind a prompt. */
#include "config.h"
#include "cli/job.h"

#include <stdio.h>
#include <string.h>

#include "zb/generate.h"
#include "zb/log.h"
#include "zb/mem.h"

/* New tokens where neither --max-tokens nor data.seq_len says less. */
#define DEFAULT_TOKENS 128

/* Ids that a message shows. */
#define LOGGED_BYTES 800

struct ids {
    int32_t *id;
    size_t n, cap;
};

static enum zb_status take_ids(void *arg, const int32_t *ids, size_t n)
{
    struct ids *all = arg;

    for (size_t i = 0; i < n; i++) {
        ZB_TRY(zb_grow(&all->id, all->n, &all->cap, sizeof(*all->id)));
        all->id[all->n++] = ids[i];
    }
    return ZB_OK;
}

static enum zb_status encode_bytes(const char *text, struct ids *all)
{
    for (; *text != '\0'; text++) {
        int32_t id = (unsigned char)*text;

        ZB_TRY(take_ids(all, &id, 1));
    }
    return ZB_OK;
}

static enum zb_status encode(const struct zbrun_job *job, struct ids *all)
{
    const char *text = job->opts->generate;
    struct zb_encoder *enc;
    enum zb_status st;

    if (job->tokenizer == NULL) {
        return encode_bytes(text, all);
    }
    ZB_TRY(zb_encoder_new(job->tokenizer, &enc));
    st = zb_encode(enc, text, strlen(text), take_ids, all);
    zb_encoder_free(enc);
    return st;
}

/* How many tokens there may be in all: bounded by the session, whose sequences
 * have data.seq_len tokens at most. */
static enum zb_status plan_length(const struct zbrun_job *job, size_t n_prompt,
                                  int64_t *n_max_out)
{
    int64_t room = job->conf->data.seq_len - (int64_t)n_prompt;
    int64_t n = job->opts->max_tokens;

    if (n_prompt == 0) {
        return zb_fail(ZB_ECONFIG, "--generate: the prompt has no token");
    }
    if (room < 1 || n > room) {
        return zb_fail(ZB_ECONFIG,
                       "--generate: a prompt of %zu tokens and %lld more do "
                       "not fit data.seq_len = %lld",
                       n_prompt, n > 0 ? (long long)n : 1,
                       (long long)job->conf->data.seq_len);
    }
    if (n == 0) {
        n = room < DEFAULT_TOKENS ? room : DEFAULT_TOKENS;
    }
    *n_max_out = (int64_t)n_prompt + n;
    return ZB_OK;
}

/* Ids above 255 are tokens that a model may have, but no bytes. */
static void print_bytes(const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < ZB_BYTE_VOCAB) {
            putchar(ids[i]);
        }
    }
    putchar('\n');
}

/* The prompt and what follows it. */
static enum zb_status print_text(const struct zbrun_job *job,
                                 const int32_t *ids, int64_t n)
{
    char *text;

    if (job->tokenizer == NULL) {
        print_bytes(ids, n);
        return ZB_OK;
    }
    ZB_TRY(zb_decode(job->tokenizer, ids, (size_t)n, 1, &text));
    puts(text);
    zb_free(text);
    return ZB_OK;
}

/* With -v, for those who compare. */
static void log_ids(const int32_t *ids, int64_t n_prompt, int64_t n)
{
    char text[LOGGED_BYTES];
    size_t len = 0;

    for (int64_t i = n_prompt; i < n && len + 16 < sizeof(text); i++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, " %d", ids[i]);
    }
    zb_log(ZB_LOG_DEBUG, "%lld tokens behind %lld of the prompt:%s",
           (long long)(n - n_prompt), (long long)n_prompt, len > 0 ? text : "");
}

/* Noise is not what the user wanted to see. */
static void warn_untrained(const struct zbrun_job *job)
{
    if (job->resume == NULL && job->pretrained == NULL) {
        zb_log(ZB_LOG_WARN,
               "the weights are drawn: there is no checkpoint, and model.init "
               "is not pretrained");
    }
}

static enum zb_status generate(const struct zbrun_job *job, int64_t n_prompt,
                               int64_t n_max, int32_t *ids)
{
    const struct zb_sampling how = {.temperature = job->opts->temperature,
                                    .top_p = job->opts->top_p,
                                    .seed = job->conf->train.seed};
    struct zb_session *s;
    int64_t n = 0;
    enum zb_status st;

    ZB_TRY(zb_session_new(job->model, &job->session, &s));
    st = zb_generate(s, &how, n_prompt, n_max, ids, &n);
    zb_session_free(s);
    ZB_TRY(st);
    log_ids(ids, n_prompt, n);
    return print_text(job, ids, n);
}

enum zb_status zbrun_generate(const struct zbrun_job *job)
{
    struct ids all = {.n = 0};
    int64_t n_max = 0, n_prompt;
    int32_t *id;
    enum zb_status st;

    if (!zb_model_is_causal(job->model)) {
        return zb_fail(ZB_ECONFIG,
                       "--generate: %s does not predict the next token",
                       zb_model_type(job->model));
    }
    warn_untrained(job);
    ZB_TRY_GOTO(st, encode(job, &all), out);
    ZB_TRY_GOTO(st, plan_length(job, all.n, &n_max), out);
    n_prompt = (int64_t)all.n;
    id = zb_realloc_array(all.id, all.n, (size_t)n_max, sizeof(*id));
    if (id == NULL) {
        st = ZB_ENOMEM;
        goto out;
    }
    all.id = id;
    st = generate(job, n_prompt, n_max, id);
out:
    zb_free(all.id);
    return st;
}
