/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *zb_processor_name(char name[ZB_PROCESSOR_MAX])
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(name, ZB_PROCESSOR_MAX, "unknown");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon += 1 + strspn(colon + 1, " ");
            snprintf(name, ZB_PROCESSOR_MAX, "%.*s",
                     (int)strcspn(colon, "\n"), colon);
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return name;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double zb_median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return n % 2 == 1 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}
