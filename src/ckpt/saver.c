/* SPDX-License-Identifier: MIT
 *
 * Checkpoints written behind training. */
#include "config.h"
#include "zb/checkpoint.h"

#include <stdatomic.h>
#include <stdio.h>

#include "zb/mem.h"
#include "zb/thread.h"

/* While `is_running`, everything but is_done belongs to the writer. */
struct zb_saver {
    struct zb_ckpt_opts o;
    char *dir, *tokenizer_json;
    struct zb_thread thread;
    int is_running;      /* a thread is to be joined; the owner's */
    _Atomic int is_done; /* the writer stores it last, with release */
    struct zb_ckpt_shot *c;
    enum zb_status st;
    char text[1024];
};

enum zb_status zb_saver_new(const struct zb_ckpt_opts *o,
                            struct zb_saver **s_out)
{
    struct zb_saver *s = zb_alloc(sizeof(*s));

    if (s == NULL) {
        return ZB_ENOMEM;
    }
    s->o = *o;
    s->dir = zb_strdup(o->dir);
    s->tokenizer_json =
        o->tokenizer_json != NULL ? zb_strdup(o->tokenizer_json) : NULL;
    if (s->dir == NULL ||
        (o->tokenizer_json != NULL && s->tokenizer_json == NULL)) {
        zb_saver_free(s);
        return ZB_ENOMEM;
    }
    s->o.dir = s->dir;
    s->o.tokenizer_json = s->tokenizer_json;
    atomic_init(&s->is_done, 1);
    *s_out = s;
    return ZB_OK;
}

static void write_it(void *arg)
{
    struct zb_saver *s = arg;

    s->st = zb_ckpt_write(&s->o, s->c);
    if (s->st != ZB_OK) {
        snprintf(s->text, sizeof(s->text), "%s", zb_error_text());
    }
    zb_ckpt_shot_free(s->c);
    s->c = NULL;
    atomic_store_explicit(&s->is_done, 1, memory_order_release);
}

enum zb_status zb_saver_begin(struct zb_saver *s, struct zb_ckpt_shot *c)
{
    enum zb_status st;

    ZB_BUG_IF(s->is_running, "a checkpoint is begun before another was "
                             "waited for");
    s->c = c;
    s->st = ZB_OK;
    atomic_store(&s->is_done, 0);
    st = zb_thread_start(&s->thread, "checkpoint", write_it, s);
    if (st != ZB_OK) {
        atomic_store(&s->is_done, 1);
        s->c = NULL;
        zb_ckpt_shot_free(c);
        return st;
    }
    s->is_running = 1;
    return ZB_OK;
}

int zb_saver_is_done(const struct zb_saver *s)
{
    return atomic_load_explicit(&s->is_done, memory_order_acquire);
}

enum zb_status zb_saver_wait(struct zb_saver *s)
{
    if (!s->is_running) {
        return ZB_OK;
    }
    zb_thread_join(&s->thread);
    s->is_running = 0;
    return s->st == ZB_OK ? ZB_OK : zb_fail(s->st, "%s", s->text);
}

void zb_saver_free(struct zb_saver *s)
{
    if (s == NULL) {
        return;
    }
    if (s->is_running) {
        zb_thread_join(&s->thread);
    }
    zb_free(s->tokenizer_json);
    zb_free(s->dir);
    zb_free(s);
}
