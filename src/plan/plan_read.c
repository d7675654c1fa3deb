/* SPDX-License-Identifier: MIT
 *
 * Reading schedule files. The text is untrusted: sizes are only believed as far
 * as there are nodes in the file.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

/* ---- a schedule under construction ---- */

void zb_plan_draft_release(struct zb_plan_draft *d)
{
    zb_free(d->first);
    zb_free(d->node);
}

enum zb_status zb_plan_draft_stage(struct zb_plan_draft *d)
{
    if (d->n_stage >= ZB_PLAN_MAX_STAGES) {
        return zb_fail(ZB_ECONFIG, "more than %d stages", ZB_PLAN_MAX_STAGES);
    }
    ZB_TRY(zb_grow(&d->first, d->n_stage, &d->cap_stage, sizeof(*d->first)));
    d->first[d->n_stage++] = d->n;
    return ZB_OK;
}

enum zb_status zb_plan_draft_node(struct zb_plan_draft *d,
                                  const struct zb_node *node)
{
    if (d->n >= ZB_PLAN_MAX_NODES) {
        return zb_fail(ZB_ECONFIG, "more than %zu nodes", ZB_PLAN_MAX_NODES);
    }
    ZB_TRY(zb_grow(&d->node, d->n, &d->cap, sizeof(*d->node)));
    d->node[d->n++] = *node;
    d->max_chunk = node->chunk > d->max_chunk ? node->chunk : d->max_chunk;
    d->max_mb = node->mb > d->max_mb ? node->mb : d->max_mb;
    return ZB_OK;
}

static enum zb_status draft_copy(const struct zb_plan_draft *d,
                                 enum zb_placement placement, int n_chunk,
                                 int n_micro, struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;

    ZB_TRY(zb_plan_schedule_new("file", (int)d->n_stage, n_micro, placement,
                                n_chunk, &s));
    for (size_t i = 0; i < d->n_stage; i++) {
        size_t end = i + 1 < d->n_stage ? d->first[i + 1] : d->n;
        size_t n = end - d->first[i];

        if (zb_plan_stage_alloc(s, (int)i, n) != ZB_OK) {
            zb_schedule_free(s);
            return ZB_ENOMEM;
        }
        if (n > 0) {
            memcpy(s->stages[i].node, d->node + d->first[i],
                   n * sizeof(*d->node));
        }
    }
    *s_out = s;
    return ZB_OK;
}

/* Make the schedule as placed, with messages. */
static enum zb_status draft_place(const struct zb_plan_draft *d,
                                  enum zb_placement placement, int n_chunk,
                                  int n_micro, struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st;

    st = draft_copy(d, placement, n_chunk, n_micro, &s);
    if (st == ZB_EINVAL) {
        return zb_fail(ZB_ECONFIG, "%s", zb_error_text());
    }
    if (st != ZB_OK) {
        return st;
    }
    if (zb_plan_has_comm(s)) {
        st = zb_plan_check_streams(s, 0);
        zb_plan_measure(s);
    } else {
        st = zb_schedule_add_comm(s, NULL);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

/* Two chunks per stage can be a V or a loop. A file that does not say is a
 * loop only if that makes it legal and a V does not. */
static enum zb_status draft_guess(const struct zb_plan_draft *d, int n_micro,
                                  struct zb_schedule **s_out)
{
    static const enum zb_placement order[] = {ZB_PLACE_V, ZB_PLACE_LOOP};

    for (int i = 0; i < 2; i++) {
        struct zb_schedule *s = NULL;
        enum zb_status st = draft_place(d, order[i], 2, n_micro, &s);

        if (st == ZB_OK) {
            st = zb_schedule_check(s, NULL);
        }
        if (st == ZB_OK) {
            *s_out = s;
            return ZB_OK;
        }
        zb_schedule_free(s);
        if (st == ZB_ENOMEM) {
            return st;
        }
    }
    return draft_place(d, ZB_PLACE_V, 2, n_micro, s_out);
}

enum zb_status zb_plan_draft_finish(struct zb_plan_draft *d, int placement,
                                    int n_micro, struct zb_schedule **s_out)
{
    int n_chunk = d->max_chunk + 1;
    uint64_t need;

    if (d->n == 0) {
        return zb_fail(ZB_ECONFIG, "no nodes");
    }
    n_micro = n_micro > 0 ? n_micro : d->max_mb + 1;
    if (d->max_mb >= n_micro) {
        return zb_fail(ZB_ECONFIG, "there is an mb %d, but n_micro is %d",
                       d->max_mb, n_micro);
    }
    if (placement == ZB_PLACE_V && n_chunk < 2) {
        n_chunk = 2;
    }
    need = (uint64_t)d->n_stage * (uint64_t)n_chunk;
    if (need > ZB_PLAN_MAX_NODES || need * (uint64_t)n_micro > d->n) {
        return zb_fail(ZB_ECONFIG,
                       "%zu nodes cannot be all of %zu stages x %d chunks x "
                       "%d microbatches",
                       d->n, d->n_stage, n_chunk, n_micro);
    }
    if (placement < 0 && n_chunk == 2) {
        return draft_guess(d, n_micro, s_out);
    }
    if (placement < 0) {
        placement = n_chunk == 1 ? ZB_PLACE_LINEAR : ZB_PLACE_LOOP;
    }
    return draft_place(d, (enum zb_placement)placement, n_chunk, n_micro,
                       s_out);
}

/* ---- nodes ---- */

/* One word of a line; len 0 at its end. */
struct word {
    const char *text;
    size_t len;
};

static struct word next_word(const char **at)
{
    struct word w;

    while (**at == ' ' || **at == '\t' || **at == '\r') {
        (*at)++;
    }
    w.text = *at;
    while (**at != '\0' && !isspace((unsigned char)**at)) {
        (*at)++;
    }
    w.len = (size_t)(*at - w.text);
    return w;
}

static enum zb_status read_count(struct word w, const char *name, int *out)
{
    int value = 0;

    for (size_t i = 0; i < w.len; i++) {
        if (!isdigit((unsigned char)w.text[i]) ||
            value > ZB_PLAN_MAX_CELLS / 10) {
            value = -1;
            break;
        }
        value = value * 10 + (w.text[i] - '0');
    }
    if (w.len == 0) {
        return zb_fail(ZB_ECONFIG, "%s is missing", name);
    }
    if (value < 0) {
        return zb_fail(ZB_ECONFIG, "%s '%.*s' is not a number from 0 to %d",
                       name, w.len > 40 ? 40 : (int)w.len, w.text,
                       ZB_PLAN_MAX_CELLS);
    }
    *out = value;
    return ZB_OK;
}

static enum zb_status read_time(struct word w, const char *name, double *out)
{
    char *end;
    double value;

    if (w.len == 0) {
        return zb_fail(ZB_ECONFIG, "%s is missing", name);
    }
    value = strtod(w.text, &end);
    if (end != w.text + w.len || !isfinite(value) || value < 0) {
        return zb_fail(ZB_ECONFIG, "%s '%.*s' is not a number >= 0", name,
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    *out = value;
    return ZB_OK;
}

static enum zb_status read_line(const char *at, int *stage_out,
                                struct zb_node *node_out)
{
    struct zb_node node = {0};
    struct word w;

    ZB_TRY(read_count(next_word(&at), "stage", stage_out));
    w = next_word(&at);
    if (!zb_plan_find_type(w.text, w.len, &node.type)) {
        return zb_fail(ZB_ECONFIG, "unknown node type '%.*s'",
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    ZB_TRY(read_count(next_word(&at), "chunk", &node.chunk));
    ZB_TRY(read_count(next_word(&at), "mb", &node.mb));
    ZB_TRY(read_time(next_word(&at), "start", &node.start));
    ZB_TRY(read_time(next_word(&at), "end", &node.end));
    ZB_TRY(read_count(next_word(&at), "rollback", &node.rollback));
    w = next_word(&at);
    if (w.len > 0) {
        return zb_fail(ZB_ECONFIG, "'%.*s' after the rollback flag",
                       w.len > 40 ? 40 : (int)w.len, w.text);
    }
    if (node.rollback > 1) {
        return zb_fail(ZB_ECONFIG, "rollback must be 0 or 1");
    }
    *node_out = node;
    return ZB_OK;
}

static enum zb_status add_line(struct zb_plan_draft *d, const char *line)
{
    const char *at = line;
    struct word w = next_word(&at);
    struct zb_node node;
    int stage;

    if (w.len == 0 || w.text[0] == '#') {
        return ZB_OK;
    }
    ZB_TRY(read_line(line, &stage, &node));
    if ((size_t)stage == d->n_stage) {
        ZB_TRY(zb_plan_draft_stage(d));
    }
    if ((size_t)stage + 1 != d->n_stage) {
        return zb_fail(ZB_ECONFIG,
                       "stage %d: stages must be in order, from 0, without "
                       "gaps",
                       stage);
    }
    return zb_plan_draft_node(d, &node);
}

static enum zb_status add_lines(struct zb_plan_draft *d, const char *path,
                                const char *text)
{
    enum zb_status st;
    size_t line_no = 1;

    for (const char *at = text; *at != '\0'; line_no++) {
        st = add_line(d, at);
        if (st != ZB_OK) {
            return zb_fail_in(st, "%s: line %zu", path, line_no);
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return ZB_OK;
}

enum zb_status zb_plan_read_nodes(const char *path, const char *text,
                                  struct zb_schedule **s_out)
{
    struct zb_plan_draft d = {.max_chunk = -1, .max_mb = -1};
    enum zb_status st = add_lines(&d, path, text);

    if (st == ZB_OK) {
        st = zb_plan_draft_finish(&d, -1, 0, s_out);
        if (st != ZB_OK) {
            zb_fail_in(st, "%s", path);
        }
    }
    zb_plan_draft_release(&d);
    return st;
}

/* ---- files ---- */

static enum zb_status slurp_open(FILE *f, char **text_out, size_t *len_out)
{
    char *text = NULL;
    size_t len = 0, cap = 0;

    for (;;) {
        size_t got, more = cap == 0 ? 1 << 16 : cap * 2;
        char *bigger;

        if (len > ZB_PLAN_MAX_BYTES) {
            zb_free(text);
            return zb_fail(ZB_ECONFIG, "larger than %zu bytes",
                           ZB_PLAN_MAX_BYTES);
        }
        bigger = zb_realloc_array(text, cap, more, 1);
        if (bigger == NULL) {
            zb_free(text);
            return ZB_ENOMEM;
        }
        text = bigger;
        cap = more;
        got = fread(text + len, 1, cap - 1 - len, f);
        len += got;
        if (len < cap - 1) {
            break;
        }
    }
    if (ferror(f)) {
        zb_free(text);
        return zb_fail(ZB_EIO, "cannot read: %s", strerror(errno));
    }
    *text_out = text;
    *len_out = len;
    return ZB_OK;
}

static enum zb_status slurp(const char *path, char **text_out, size_t *len_out)
{
    FILE *f = fopen(path, "rb");
    enum zb_status st;

    if (f == NULL) {
        return zb_fail(ZB_EIO, "%s: cannot open: %s", path, strerror(errno));
    }
    st = slurp_open(f, text_out, len_out);
    fclose(f);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", path);
}

/* PyTorch's text starts with an action such as 0F0. */
static int looks_like_torch(const char *text)
{
    size_t n = strspn(text, "0123456789");

    return n > 0 && isupper((unsigned char)text[n]);
}

enum zb_status zb_schedule_read(const char *path, struct zb_schedule **s_out)
{
    enum zb_status st;
    const char *first;
    char *text = NULL;
    size_t len = 0;

    ZB_TRY(slurp(path, &text, &len));
    first = text + strspn(text, " \t\r\n");
    if (strlen(text) != len) {
        st =
            zb_fail(ZB_ECONFIG, "%s: not a schedule: it has a zero byte", path);
    } else if (*first == '{') {
        st = zb_plan_read_json(path, text, len, s_out);
    } else if (looks_like_torch(first)) {
        st = zb_fail(ZB_ECONFIG,
                     "%s: reading PyTorch schedules is not built "
                     "yet",
                     path);
    } else {
        st = zb_plan_read_nodes(path, text, s_out);
    }
    zb_free(text);
    return st;
}
