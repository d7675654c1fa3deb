/* SPDX-License-Identifier: MIT
 *
 * inih takes lines apart. What it would let pass is looked at here first: NUL
 * bytes, over-long lines (it reads the rest as a line of its own), text after a
 * section's ']', empty sections, indented lines (it takes them for more of the
 * value above). Its line buffer is 200 bytes on most systems, so a longer line
 * goes to it in pieces, in the form of its continuation lines.
 */
#include "config.h"
#include "conf/conf_int.h"

#include <errno.h>
#include <ini.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "zb/mem.h"

#define FILE_MAX_BYTES ((size_t)1 << 20)
#define LINE_MAX_BYTES 65536
#define SECTION_MAX_BYTES 40 /* inih cuts them to 49 */

struct reader {
    const char *path;
    char *text;     /* the file, its lines ended by NUL as they are read */
    size_t size;    /* without the last NUL */
    size_t pos;     /* start of the next line */
    char *rest;     /* what is left of the present line; NULL: nothing */
    int line;       /* number of the present line, from 1 */
    int line_needs; /* the present line must give a key */
    enum zb_status st;
    struct zb_ini *ini;
};

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static enum zb_status entry_add(struct reader *r, const char *section,
                                const char *key, const char *value)
{
    struct zb_ini *ini = r->ini;
    struct zb_ini_entry *e;

    ZB_TRY(zb_grow(&ini->entry, ini->n, &ini->cap, sizeof(*ini->entry)));
    e = &ini->entry[ini->n++];
    e->line = r->line;
    e->section = zb_strdup(section);
    e->key = key == NULL ? NULL : zb_strdup(key);
    e->value = value == NULL ? NULL : zb_strdup(value);
    if (e->section == NULL || (key != NULL && e->key == NULL) ||
        (value != NULL && e->value == NULL)) {
        return ZB_ENOMEM;
    }
    return ZB_OK;
}

/* A further piece of a long line: inih strips the blanks round it, so pieces
 * are cut where there are none (see piece_len()). */
static enum zb_status entry_extend(struct zb_ini_entry *e, const char *piece)
{
    char *longer = zb_format("%s%s", e->value, piece);

    if (longer == NULL) {
        return ZB_ENOMEM;
    }
    zb_free(e->value);
    e->value = longer;
    return ZB_OK;
}

/* inih's callback; 0 makes it count an error, but goes on reading. */
static int on_entry(void *user, const char *section, const char *name,
                    const char *value)
{
    struct reader *r = user;
    struct zb_ini *ini = r->ini;

    if (r->st != ZB_OK) {
        return 0;
    }
    if (!r->line_needs) {
        r->st = entry_extend(&ini->entry[ini->n - 1], value);
        return r->st == ZB_OK;
    }
    r->line_needs = 0;
    if (section[0] == '\0') {
        r->st =
            zb_fail(ZB_ECONFIG, "%s:%d: '%.60s' stands before any [section]",
                    r->path, r->line, name);
    } else if (name[0] == '\0') {
        r->st =
            zb_fail(ZB_ECONFIG, "%s:%d: no key before '='", r->path, r->line);
    } else {
        r->st = entry_add(r, section, name, value);
    }
    return r->st == ZB_OK;
}

/* Cut a comment (';' at the start or after a blank) and blanks at both ends. */
static char *line_strip(char *s)
{
    char *end;

    for (char *p = s; *p != '\0'; p++) {
        if (*p == ';' && p > s && is_blank(p[-1])) {
            *p = '\0';
            break;
        }
    }
    while (is_blank(*s)) {
        s++;
    }
    end = s + strlen(s);
    while (end > s && is_blank(end[-1])) {
        end--;
    }
    *end = '\0';
    return s;
}

static enum zb_status section_check(struct reader *r, const char *line)
{
    const char *end = strchr(line, ']');
    char *name;
    enum zb_status st;

    if (end == NULL || end[1] != '\0' || end - line > SECTION_MAX_BYTES) {
        return zb_fail(ZB_ECONFIG,
                       "%s:%d: a section is written [name] and "
                       "nothing else: '%.60s'",
                       r->path, r->line, line);
    }
    name = zb_strndup(line + 1, (size_t)(end - line - 1));
    if (name == NULL) {
        return ZB_ENOMEM;
    }
    st = entry_add(r, name, NULL, NULL);
    zb_free(name);
    return st;
}

static enum zb_status line_check(struct reader *r, const char *line,
                                 size_t raw_len)
{
    if (raw_len > LINE_MAX_BYTES) {
        return zb_fail(ZB_ECONFIG, "%s:%d: the line has more than %d bytes",
                       r->path, r->line, LINE_MAX_BYTES);
    }
    if (line[0] == '[') {
        return section_check(r, line);
    }
    if (line[0] == '\0') {
        return ZB_OK;
    }
    r->line_needs = 1;
    if (strpbrk(line, "=:") == NULL) {
        return zb_fail(ZB_ECONFIG, "%s:%d: expected 'key = value': '%.60s'",
                       r->path, r->line, line);
    }
    return ZB_OK;
}

/* Take the next line of the file as the present one. */
static enum zb_status line_next(struct reader *r)
{
    char *line = r->text + r->pos;
    char *end = memchr(line, '\n', r->size - r->pos);
    size_t len = end == NULL ? r->size - r->pos : (size_t)(end - line);

    line[len] = '\0';
    r->pos += len + (end != NULL);
    r->line++;
    r->line_needs = 0;
    if (r->line == 1 && len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
    }
    r->rest = line_strip(line);
    if (strchr(";#", r->rest[0]) != NULL) {
        r->rest += strlen(r->rest);
    }
    return line_check(r, r->rest, len);
}

/* How much of `s` to hand over when at most `max` bytes fit. A cut never
 * touches a blank or a comment character. */
static size_t piece_len(const char *s, size_t max)
{
    size_t len = strlen(s);

    if (len <= max) {
        return len;
    }
    for (len = max; len > 1; len--) {
        if (!is_blank(s[len - 1]) && !is_blank(s[len]) &&
            strchr(";#", s[len]) == NULL) {
            return len;
        }
    }
    return 0;
}

/* inih's fgets: `num` bytes of buffer with the NUL; NULL at the end. */
static char *read_piece(char *str, int num, void *user)
{
    struct reader *r = user;
    int is_more = r->rest != NULL;
    size_t len;

    if (r->st == ZB_OK && r->line_needs) {
        r->st =
            zb_fail(ZB_ECONFIG, "%s:%d: the key is too long", r->path, r->line);
    }
    if (r->st != ZB_OK || (!is_more && r->pos >= r->size)) {
        return NULL;
    }
    if (!is_more) {
        r->st = line_next(r);
        if (r->st != ZB_OK) {
            return NULL;
        }
    }
    if (num < 16) {
        r->st =
            zb_fail(ZB_ECONFIG, "inih was built for lines of %d bytes", num);
        return NULL;
    }
    len = piece_len(r->rest, (size_t)num - 4);
    if (len == 0 && r->rest[0] != '\0') {
        r->st = zb_fail(ZB_ECONFIG, "%s:%d: too many blanks in a row", r->path,
                        r->line);
        return NULL;
    }
    snprintf(str, (size_t)num, "%s%.*s\n", is_more ? " " : "", (int)len,
             r->rest);
    r->rest = r->rest[len] == '\0' ? NULL : r->rest + len;
    return str;
}

static enum zb_status parse(struct reader *r)
{
    int failed = ini_parse_stream(read_piece, r, on_entry, r);

    if (r->st == ZB_OK && failed != 0) {
        return zb_fail(ZB_ECONFIG, "%s: not an INI file (piece %d)", r->path,
                       failed);
    }
    return r->st;
}

/* The whole file as one string. */
static enum zb_status slurp(const char *path, FILE *f, char **text_out,
                            size_t *size_out)
{
    char *text = zb_alloc(FILE_MAX_BYTES + 2);
    size_t n;

    if (text == NULL) {
        return ZB_ENOMEM;
    }
    n = fread(text, 1, FILE_MAX_BYTES + 1, f);
    if (ferror(f)) {
        zb_free(text);
        return zb_fail(ZB_EIO, "%s: %s", path, strerror(errno));
    }
    if (n > FILE_MAX_BYTES) {
        zb_free(text);
        return zb_fail(ZB_ECONFIG, "%s: more than %zu bytes", path,
                       FILE_MAX_BYTES);
    }
    *text_out = text;
    *size_out = n;
    return ZB_OK;
}

static enum zb_status check_no_nul(const char *path, const char *text,
                                   size_t size)
{
    const char *nul = memchr(text, '\0', size);
    int line = 1;

    if (nul == NULL) {
        return ZB_OK;
    }
    for (const char *p = text; p < nul; p++) {
        line += *p == '\n';
    }
    return zb_fail(ZB_ECONFIG, "%s:%d: a NUL byte: not a text file", path,
                   line);
}

enum zb_status zb_ini_read(const char *path, struct zb_ini *ini_out)
{
    struct reader r = {.path = path, .ini = ini_out};
    struct stat sb;
    enum zb_status st;
    FILE *f;

    memset(ini_out, 0, sizeof(*ini_out));
    f = fopen(path, "r");
    if (f == NULL) {
        return zb_fail(ZB_ECONFIG, "%s: %s", path, strerror(errno));
    }
    if (fstat(fileno(f), &sb) == 0 && S_ISDIR(sb.st_mode)) {
        fclose(f);
        return zb_fail(ZB_ECONFIG, "%s: is a directory", path);
    }
    st = slurp(path, f, &r.text, &r.size);
    fclose(f);
    ZB_TRY(st);
    st = check_no_nul(path, r.text, r.size);
    if (st == ZB_OK) {
        st = parse(&r);
    }
    zb_free(r.text);
    return st;
}

void zb_ini_release(struct zb_ini *ini)
{
    for (size_t i = 0; i < ini->n; i++) {
        zb_free(ini->entry[i].section);
        zb_free(ini->entry[i].key);
        zb_free(ini->entry[i].value);
    }
    zb_free(ini->entry);
    memset(ini, 0, sizeof(*ini));
}
