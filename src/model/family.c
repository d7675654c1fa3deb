/* SPDX-License-Identifier: MIT
 *
 * The table of families.
 */
#include "config.h"
#include "model/model_int.h"

#include <string.h>

#define LAYOUTS "pp, tp, split_gather, all_to_all, ring_attn"

static const struct zb_family *const families[] = {
    &zb_family_llama,   &zb_family_qwen2,  &zb_family_mistral, &zb_family_gpt2,
    &zb_family_gptj,    &zb_family_cohere, &zb_family_falcon,  &zb_family_bloom,
    &zb_family_chatglm, &zb_family_opt,    &zb_family_bert,
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

static void list_only(const struct zb_family *family, FILE *f)
{
    const char *sep = "";

    for (size_t i = 0; i < family->n_keys; i++) {
        const struct zb_key_row *row = &family->keys[i];

        if (row->flags & ZB_KEY_ONLY) {
            fprintf(f, "%s%s = %s", sep, row->name, row->def);
            sep = ", ";
        }
    }
}

void zb_model_list(FILE *f)
{
    fputs("| model_type | class | supports | layouts | only |\n"
          "|---|---|---|---|---|\n",
          f);
    for (size_t i = 0; i < ZB_COUNT_OF(families); i++) {
        fprintf(f, "| %s | %s", families[i]->name, families[i]->architecture);
        for (int k = 0; k < ZB_FAMILY_MAX_CLASSES; k++) {
            const char *class = families[i]->more_classes[k];

            fprintf(f, "%s%s", class != NULL ? ", " : "",
                    class != NULL ? class : "");
        }
        fprintf(f, " | %s | %s | ", families[i]->notes, LAYOUTS);
        list_only(families[i], f);
        fputs(" |\n", f);
    }
}
