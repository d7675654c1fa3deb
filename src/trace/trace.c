/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

struct zb_trace {
    FILE *f;
    char *path;
    int n_events;
};

static const char *const group_name[] = {
    [ZB_TRACE_RAN] = "ran",
    [ZB_TRACE_PLANNED] = "planned",
};

static enum zb_status io_error(const struct zb_trace *t)
{
    return zb_fail(ZB_EIO, "%s: cannot write: %s", t->path, strerror(errno));
}

static enum zb_status name_group(struct zb_trace *t, enum zb_trace_group group)
{
    int len = fprintf(t->f,
                      "%s{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\","
                      "\"args\":{\"name\":\"%s\"}}",
                      t->n_events++ > 0 ? ",\n" : "", (int)group,
                      group_name[group]);

    return len < 0 ? io_error(t) : ZB_OK;
}

enum zb_status zb_trace_open(const char *path, struct zb_trace **t_out)
{
    struct zb_trace *t = zb_alloc(sizeof(*t));
    enum zb_status st = ZB_ENOMEM;

    if (t == NULL) {
        return ZB_ENOMEM;
    }
    t->path = zb_strdup(path);
    if (t->path == NULL) {
        goto err;
    }
    t->f = fopen(path, "w");
    if (t->f == NULL || fputs("{\"traceEvents\":[\n", t->f) < 0) {
        st = io_error(t);
        goto err;
    }
    ZB_TRY_GOTO(st, name_group(t, ZB_TRACE_RAN), err);
    ZB_TRY_GOTO(st, name_group(t, ZB_TRACE_PLANNED), err);
    *t_out = t;
    return ZB_OK;
err:
    if (t->f != NULL) {
        fclose(t->f);
    }
    zb_free(t->path);
    zb_free(t);
    return st;
}

enum zb_status zb_trace_name(struct zb_trace *t, enum zb_trace_group group,
                             int row, const char *name)
{
    int len = fprintf(t->f,
                      ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                      "\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
                      (int)group, row, name);

    t->n_events++;
    return len < 0 ? io_error(t) : ZB_OK;
}

enum zb_status zb_trace_span(struct zb_trace *t, enum zb_trace_group group,
                             int row, const char *name, double start_us,
                             double dur_us)
{
    int len = fprintf(t->f,
                      ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\","
                      "\"ts\":%.3f,\"dur\":%.3f}",
                      (int)group, row, name, start_us, dur_us);

    t->n_events++;
    return len < 0 ? io_error(t) : ZB_OK;
}

enum zb_status zb_trace_close(struct zb_trace *t)
{
    enum zb_status st = ZB_OK;

    if (t == NULL) {
        return ZB_OK;
    }
    if (fputs("\n]}\n", t->f) < 0 || fflush(t->f) != 0 || ferror(t->f)) {
        st = io_error(t);
    }
    if (fclose(t->f) != 0 && st == ZB_OK) {
        st = io_error(t);
    }
    zb_free(t->path);
    zb_free(t);
    return st;
}
