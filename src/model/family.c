/* SPDX-License-Identifier: MIT
 *
 * The table of families.
 */
#include "config.h"
#include "model/model_int.h"

#include <string.h>

static const struct zb_family *const families[] = {
    &zb_family_llama,
    &zb_family_gpt2,
};

const char *zb_model_family(size_t i)
{
    return i < ZB_COUNT_OF(families) ? families[i]->name : NULL;
}

const struct zb_family *zb_family_find(const char *name)
{
    for (size_t i = 0; i < ZB_COUNT_OF(families); i++) {
        if (strcmp(families[i]->name, name) == 0) {
            return families[i];
        }
    }
    return NULL;
}
