/* SPDX-License-Identifier: MIT */
#include "config.h"
#include <string.h>
#include "zb/mem.h"
#include "zbt.h"

static void product_that_overflows_returns_null(void)
{
    CU_ASSERT_PTR_NULL(zb_alloc_array(SIZE_MAX / 2, 3));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "overflows"));
}

static void size_zero_returns_valid_pointer(void)
{
    char *p = zb_alloc_array(0, 8);

    CU_ASSERT_PTR_NOT_NULL(p);
    zb_free(p);
}

static void fail_at_k_fails_kth_allocation_only(void)
{
    void *a, *b, *c;

    zb_mem_fail_at(2);
    a = zb_alloc(1);
    CU_ASSERT_FALSE(zb_mem_failed());
    b = zb_alloc(1);
    c = zb_alloc(1);
    CU_ASSERT_PTR_NOT_NULL(a);
    CU_ASSERT_PTR_NULL(b);
    CU_ASSERT_PTR_NOT_NULL(c);
    CU_ASSERT_TRUE(zb_mem_failed());
    zb_free(a);
    zb_free(c);
    zb_mem_fail_at(0);
}

static void grow_keeps_contents(void)
{
    int *v = NULL;
    size_t cap = 0;

    for (int i = 0; i < 100; i++) {
        ZBT_OK(zb_grow(&v, (size_t)i, &cap, sizeof(*v)));
        v[i] = i;
    }
    for (int i = 0; i < 100; i++) {
        CU_ASSERT_EQUAL(v[i], i);
    }
    zb_free(v);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(product_that_overflows_returns_null),
        ZBT_CASE(size_zero_returns_valid_pointer),
        ZBT_CASE(fail_at_k_fails_kth_allocation_only),
        ZBT_CASE(grow_keeps_contents),
    };
    return zbt_run("mem", cases, ZB_COUNT_OF(cases));
}
