/* SPDX-License-Identifier: MIT
 *
 * The few instructions that CUDA C++ has no words for, one function each (PTX
 * ISA, "Warp-level matrix instructions" and "Data movement"). Which lane holds
 * which elements is told by the index functions of cuda_mma.h. All but the
 * copies are for a whole warp at once.
 *
 * Nothing else of the backend is inline assembly, so that a model of a warp
 * can put functions in the place of these.
 */
#ifndef ZB_CUDA_PTX_H
#define ZB_CUDA_PTX_H

#include "kern/kern.h"

/* Four 8x8 matrices of 16-bit elements: lane l names the row l % 8 of matrix
 * l / 8, 16 aligned bytes of shared memory; r[m] is of matrix m. */
ZB_KERN_FN void zb_ptx_load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* The same, each matrix transposed. */
ZB_KERN_FN void zb_ptx_load_matrices_t(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* C[16,8] += A[16,16] B[16,8]; c[row][column] of the lane's elements. */
ZB_KERN_FN void zb_ptx_mma_bf16(float (&c)[2][2], const uint32_t (&a)[4],
                                uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[1][0]), "+f"(c[1][1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0),
                   "r"(b1));
}

ZB_KERN_FN void zb_ptx_mma_f16(float (&c)[2][2], const uint32_t (&a)[4],
                               uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[1][0]), "+f"(c[1][1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0),
                   "r"(b1));
}

/* Two floats rounded to a pair of 16-bit elements, the first in the low half.
 */
ZB_KERN_FN uint32_t zb_ptx_pack_bf16(float first, float second)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

ZB_KERN_FN uint32_t zb_ptx_pack_f16(float first, float second)
{
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

/* Begin to copy 16 aligned bytes from global to shared memory, or to fill them
 * with zeros; zb_ptx_copy_wait() ends all copies of this lane. */
ZB_KERN_FN void zb_ptx_copy16(void *shared, const void *global, int is_zero)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global),
                   "r"(is_zero ? 0 : 16)
                 : "memory");
}

ZB_KERN_FN void zb_ptx_copy_wait(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

#endif
