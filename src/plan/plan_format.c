/* SPDX-License-Identifier: MIT
 *
 * The formats of schedules by name, and by what a file looks like.
 */
#include "config.h"
#include "plan/plan_format.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

/* A format that can be read has is_mine and read. The rows are asked in this
 * order whether a file is theirs; nodes takes what is left. */
static const struct {
    const char *name;
    enum zb_status (*write)(const struct zb_schedule *s,
                            const struct zb_plan_style *style, FILE *f);
    int (*is_mine)(const char *text);
    enum zb_status (*read)(const char *path, const char *text, size_t len,
                           struct zb_schedule **s_out);
} formats[ZB_N_PLAN_FORMATS] = {
    [ZB_PLAN_TEXT] = {.name = "text", .write = zb_plan_write_text},
    [ZB_PLAN_JSON] = {"json", zb_plan_write_json, zb_plan_is_json,
                      zb_plan_read_json},
    [ZB_PLAN_NODES] = {.name = "nodes", .write = zb_plan_write_nodes},
    [ZB_PLAN_TORCH] = {"torch", zb_plan_write_torch, zb_plan_is_torch,
                       zb_plan_read_torch},
    [ZB_PLAN_SVG] = {.name = "svg", .write = zb_plan_write_svg},
    [ZB_PLAN_TRACE] = {.name = "trace", .write = zb_plan_write_trace},
};

const char *zb_plan_format_str(enum zb_plan_format format)
{
    return (unsigned)format < ZB_N_PLAN_FORMATS ? formats[format].name : "?";
}

enum zb_status zb_plan_format_find(const char *name,
                                   enum zb_plan_format *format_out)
{
    char known[128] = "";

    for (int i = 0; i < ZB_N_PLAN_FORMATS; i++) {
        size_t n = strlen(known);

        if (strcmp(formats[i].name, name) == 0) {
            *format_out = (enum zb_plan_format)i;
            return ZB_OK;
        }
        snprintf(known + n, sizeof(known) - n, "%s%s",
                 i == 0                       ? ""
                 : i + 1 == ZB_N_PLAN_FORMATS ? " or "
                                              : ", ",
                 formats[i].name);
    }
    return zb_fail(ZB_EINVAL, "unknown format '%.64s': %s", name, known);
}

/* ---- writing ---- */

void zb_plan_put_json(FILE *f, const char *s)
{
    fputc('"', f);
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;

        if (c == '"' || c == '\\') {
            fprintf(f, "\\%c", c);
        } else if (c < 0x20 || c > 0x7e) {
            fprintf(f, "\\u%04x", c);
        } else {
            fputc(c, f);
        }
    }
    fputc('"', f);
}

void zb_plan_put_bound(FILE *f, const struct zb_schedule *s)
{
    double gap = zb_schedule_gap(s);
    char text[ZB_PLAN_NUMBER_MAX];

    if (isnan(s->lower_bound)) {
        return;
    }
    fprintf(f, ", lower bound %s", zb_plan_number(s->lower_bound, text));
    if (!isnan(gap)) {
        fprintf(f, " (gap %.2f %%)", 100 * gap);
    }
}

int zb_plan_n_digits(int x)
{
    int n = 1;

    while (x >= 10) {
        x /= 10;
        n++;
    }
    return n;
}

enum zb_status zb_schedule_draw(const struct zb_schedule *s,
                                enum zb_plan_format format,
                                const struct zb_plan_style *style, FILE *f)
{
    static const struct zb_plan_style plain;

    if ((unsigned)format >= ZB_N_PLAN_FORMATS) {
        return zb_fail(ZB_EINVAL, "unknown schedule format %d", (int)format);
    }
    ZB_TRY(formats[format].write(s, style != NULL ? style : &plain, f));
    if (fflush(f) != 0 || ferror(f)) {
        return zb_fail(ZB_EIO, "cannot write the schedule: %s",
                       strerror(errno));
    }
    return ZB_OK;
}

enum zb_status zb_schedule_write(const struct zb_schedule *s,
                                 enum zb_plan_format format, FILE *f)
{
    return zb_schedule_draw(s, format, NULL, f);
}

/* ---- reading ---- */

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

static enum zb_status read_text(const char *path, const char *text, size_t len,
                                struct zb_schedule **s_out)
{
    if (strlen(text) != len) {
        return zb_fail(ZB_ECONFIG, "%s: not a schedule: it has a zero byte",
                       path);
    }
    for (int i = 0; i < ZB_N_PLAN_FORMATS; i++) {
        if (formats[i].is_mine != NULL && formats[i].is_mine(text)) {
            return formats[i].read(path, text, len, s_out);
        }
    }
    return zb_plan_read_nodes(path, text, len, s_out);
}

enum zb_status zb_schedule_read(const char *path, struct zb_schedule **s_out)
{
    enum zb_status st;
    char *text = NULL;
    size_t len = 0;

    ZB_TRY(slurp(path, &text, &len));
    st = read_text(path, text, len, s_out);
    zb_free(text);
    return st;
}
