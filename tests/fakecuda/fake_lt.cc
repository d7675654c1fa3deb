/* SPDX-License-Identifier: MIT
 *
 * cuBLASLt: D = alpha op(A) op(B) + beta C, column-major, with a bias for every
 * row. Each element is a float sum in the order of k.
 */
#include "fakecuda/fake_int.h"

#include <cstring>

#include "cublasLt.h"
#include "kern/half.h"

using namespace fake;

struct cublasLtContext {
    int gpu;
};

struct fake_lt_desc {
    cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    int bias_type = -1; /* -1: that of D */
};

struct fake_lt_layout {
    cudaDataType type;
    int64_t rows, cols, ld;
};

/* The alignments of A, B, C and D: what the library assumes unless told. */
struct fake_lt_preference {
    uint64_t workspace = 0;
    uint32_t align[4] = {256, 256, 256, 256};
};

namespace fake
{

#define MAX_ALIGN 256u
#define BIAS_ALIGN 16u

static cublasStatus_t end(const call &c, cublasStatus_t st)
{
    return c.fault == cudaSuccess ? st
           : c.fault == cudaErrorMemoryAllocation
               ? CUBLAS_STATUS_ALLOC_FAILED
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

template <typename T, typename... A>
static cublasStatus_t create(const char *name, T **out, A... args)
{
    call c(name);

    if (c.fault == cudaSuccess) {
        *out = new T{args...};
        the().n_live++;
    }
    return end(c, CUBLAS_STATUS_SUCCESS);
}

template <typename T> static cublasStatus_t destroy(const char *name, T *object)
{
    call c(name);

    if (object != nullptr) {
        the().n_live--;
        delete object;
    }
    return end(c, CUBLAS_STATUS_SUCCESS);
}

/* An attribute has exactly the size of its type. */
template <typename T>
static cublasStatus_t set(T *to, const void *value, size_t size)
{
    if (size != sizeof(T)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- what a product is --------------------------------------------------- */

struct product {
    const fake_lt_desc *desc;
    const fake_lt_layout *a, *b, *c, *d;

    bool is_ta() const
    {
        return desc->trans_a == CUBLAS_OP_T;
    }
    bool is_tb() const
    {
        return desc->trans_b == CUBLAS_OP_T;
    }
    bool has_bias() const
    {
        return desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
    }
    int64_t k() const
    {
        return is_ta() ? a->rows : a->cols;
    }
};

static bool is_layout(const fake_lt_layout *l)
{
    return l->rows > 0 && l->cols > 0 && l->ld >= l->rows;
}

static cublasStatus_t check(const product &p)
{
    int64_t m = p.is_ta() ? p.a->cols : p.a->rows;
    int64_t n = p.is_tb() ? p.b->rows : p.b->cols;

    if (!is_layout(p.a) || !is_layout(p.b) || !is_layout(p.c) ||
        !is_layout(p.d) || p.k() != (p.is_tb() ? p.b->cols : p.b->rows) ||
        p.c->rows != m || p.c->cols != n || p.d->rows != m || p.d->cols != n) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return p.a->type != p.b->type || p.c->type != p.d->type ||
                   (p.d->type != p.a->type && p.d->type != CUDA_R_32F) ||
                   (p.has_bias() && p.desc->bias_type >= 0 &&
                    p.desc->bias_type != (int)p.d->type)
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
}

/* What an algorithm was chosen for (FNV-1a). */
static uint64_t hash_of(const product &p)
{
    const fake_lt_layout *const all[] = {p.a, p.b, p.c, p.d};
    uint64_t h = 14695981039346656037u;
    auto add = [&h](int64_t x) { h = (h ^ (uint64_t)x) * 1099511628211u; };

    for (const fake_lt_layout *l : all) {
        add(l->type);
        add(l->rows);
        add(l->cols);
        add(l->ld);
    }
    add(p.desc->trans_a);
    add(p.desc->trans_b);
    add(p.desc->epilogue);
    return h;
}

/* ---- computing ----------------------------------------------------------- */

static float load(cudaDataType type, const char *x, int64_t i)
{
    uint16_t half;
    float f;

    if (type == CUDA_R_32F) {
        std::memcpy(&f, x + 4 * i, 4);
        return f;
    }
    std::memcpy(&half, x + 2 * i, 2);
    return type == CUDA_R_16BF ? zb_float_of_bf16(half) : zb_float_of_f16(half);
}

static void store(cudaDataType type, float f, char *y, int64_t i)
{
    uint16_t half;

    if (type == CUDA_R_32F) {
        std::memcpy(y + 4 * i, &f, 4);
        return;
    }
    half = type == CUDA_R_16BF ? zb_bf16_of_float(f) : zb_f16_of_float(f);
    std::memcpy(y + 2 * i, &half, 2);
}

static int64_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* One call, with the bytes that its addresses stand for. */
struct task {
    fake_lt_layout la, lb, lc, ld;
    bool is_ta, is_tb;
    int64_t m, n, k;
    float alpha, beta;
    const char *a, *b, *c, *bias;
    char *d;

    void run() const;

  private:
    std::vector<float> columns_of_a() const;
    void finish(const float *sum, int64_t j) const;
};

/* op(A), one column of m after the other. */
std::vector<float> task::columns_of_a() const
{
    std::vector<float> x((size_t)(m * k));

    for (int64_t l = 0; l < k; l++) {
        for (int64_t i = 0; i < m; i++) {
            x[(size_t)(l * m + i)] =
                load(la.type, a, is_ta ? i * la.ld + l : l * la.ld + i);
        }
    }
    return x;
}

void task::finish(const float *sum, int64_t j) const
{
    for (int64_t i = 0; i < m; i++) {
        float x = alpha * sum[i];

        if (beta != 0) {
            x += beta * load(lc.type, c, j * lc.ld + i);
        }
        if (bias != nullptr) {
            x += load(ld.type, bias, i);
        }
        store(ld.type, x, d, j * ld.ld + i);
    }
}

void task::run() const
{
    const std::vector<float> x = columns_of_a();
    std::vector<float> sum((size_t)m);

    for (int64_t j = 0; j < n; j++) {
        float *to = sum.data();

        std::memset(to, 0, sizeof(float) * (size_t)m);
        for (int64_t l = 0; l < k; l++) {
            float y = load(lb.type, b, is_tb ? l * lb.ld + j : j * lb.ld + l);
            const float *from = x.data() + l * m;

            for (int64_t i = 0; i < m; i++) {
                to[i] += from[i] * y;
            }
        }
        finish(to, j);
    }
}

/* ---- the rules ----------------------------------------------------------- */

/* The product's label must say that this operand is touched. */
static void check_declared(const CUstream_st *s, const touch &me,
                           const char *name, const void *ptr,
                           const fake_lt_layout &l, int mode)
{
    uintptr_t at = (uintptr_t)ptr, size = (uintptr_t)size_of(l.type);
    uintptr_t ld = (uintptr_t)l.ld * size, rows = (uintptr_t)l.rows * size;
    uintptr_t cols = (uintptr_t)l.cols;

    if (!s->has_touches ||
        is_declared(s, at, at + (cols - 1) * ld + rows, mode)) {
        return;
    }
    for (uintptr_t j = 0; j < cols; j++) {
        if (!is_declared(s, at + j * ld, at + j * ld + rows, mode)) {
            report("undeclared: %s does not say that it touches all of %s",
                   me.what->c_str(), name);
            return;
        }
    }
}

static bool is_aligned(const void *ptr, uint64_t align)
{
    return (uintptr_t)ptr % align == 0;
}

/* The alignments that the heuristic was told, 16 bits each. */
static bool is_for(const cublasLtMatmulAlgo_t *algo, const product &p,
                   const void *const ptr[4])
{
    bool ok = algo->data[0] == hash_of(p);

    for (int i = 0; i < 4; i++) {
        ok = ok && is_aligned(ptr[i], algo->data[1] >> (16 * i) & 0xffffu);
    }
    return ok && (!p.has_bias() || is_aligned(p.desc->bias, BIAS_ALIGN));
}

/* All that is touched lies in live memory: so that a wrong address is told of
 * even when nothing was declared. */
static const char *operand(CUstream_st *s, const touch &me, work &w,
                           const char *name, const void *ptr,
                           const fake_lt_layout &l, int mode)
{
    uintptr_t lo = (uintptr_t)ptr;
    uintptr_t hi =
        lo + (uintptr_t)(((l.cols - 1) * l.ld + l.rows) * size_of(l.type));
    allocation *a = find_allocation(lo);

    if (a == nullptr || !a->is_live || hi > a->start + a->size) {
        report("stray: %s has an operand %s of %zu bytes at %#zx, which is no "
               "allocation's",
               me.what->c_str(), name, (size_t)(hi - lo), (size_t)lo);
        return nullptr;
    }
    check_declared(s, me, name, ptr, l, mode);
    return bytes_at(w, lo);
}

static bool fill_task(task &t, CUstream_st *s, const touch &me, work &w,
                      const product &p, const void *const ptr[4])
{
    fake_lt_layout bias = {p.d->type, p.d->rows, 1, p.d->rows};
    bool adds = t.beta != 0;

    t.la = *p.a, t.lb = *p.b, t.lc = *p.c, t.ld = *p.d;
    t.is_ta = p.is_ta(), t.is_tb = p.is_tb();
    t.m = p.d->rows, t.n = p.d->cols, t.k = p.k();
    t.a = operand(s, me, w, "A", ptr[0], t.la, READ);
    t.b = operand(s, me, w, "B", ptr[1], t.lb, READ);
    t.c = adds ? operand(s, me, w, "C", ptr[2], t.lc, READ) : nullptr;
    t.d = const_cast<char *>(operand(s, me, w, "D", ptr[3], t.ld, WRITE));
    t.bias = p.has_bias()
                 ? operand(s, me, w, "the bias", p.desc->bias, bias, READ)
                 : nullptr;
    return t.a != nullptr && t.b != nullptr && t.d != nullptr &&
           (!adds || t.c != nullptr) && (!p.has_bias() || t.bias != nullptr);
}

} // namespace fake

/* ---- the library --------------------------------------------------------- */

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    static const struct {
        cublasStatus_t status;
        const char *name;
    } all[] = {
        {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS"},
        {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"},
        {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"},
        {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"},
        {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH"},
        {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"},
        {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR"},
        {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"},
    };

    for (const auto &s : all) {
        if (s.status == status) {
            return s.name;
        }
    }
    return "unknown status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int gpu;

    {
        std::unique_lock<std::mutex> lock(the().mu);
        gpu = me().gpu;
    }
    return create("cublasLtCreate", handle, gpu);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy("cublasLtDestroy", handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if ((compute != CUBLAS_COMPUTE_32F &&
         compute != CUBLAS_COMPUTE_32F_FAST_TF32) ||
        scale != CUDA_R_32F) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return create("cublasLtMatmulDescCreate", desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy("cublasLtMatmulDescDestroy", desc);
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                               cublasLtMatmulDescAttributes_t what,
                               const void *value, size_t size)
{
    call c("cublasLtMatmulDescSetAttribute");

    if (c.fault != cudaSuccess) {
        return end(c, CUBLAS_STATUS_SUCCESS);
    }
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&desc->trans_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&desc->trans_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&desc->bias_type, value, size);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    return create("cublasLtMatrixLayoutCreate", layout, type, (int64_t)rows,
                  (int64_t)cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy("cublasLtMatrixLayoutDestroy", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    return create("cublasLtMatmulPreferenceCreate", pref);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    return destroy("cublasLtMatmulPreferenceDestroy", pref);
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t what,
                                     const void *value, size_t size)
{
    call c("cublasLtMatmulPreferenceSetAttribute");
    uint32_t mask;

    if (c.fault != cudaSuccess) {
        return end(c, CUBLAS_STATUS_SUCCESS);
    }
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&pref->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&mask, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(
            &pref->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            value, size);
    }
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t pref, int n_wanted,
    cublasLtMatmulHeuristicResult_t *found, int *n_found)
{
    call me("cublasLtMatmulAlgoGetHeuristic");
    product p = {desc, a, b, c, d};
    cublasStatus_t st = handle == nullptr || n_wanted < 1
                            ? CUBLAS_STATUS_INVALID_VALUE
                            : check(p);

    *n_found = 0;
    if (me.fault != cudaSuccess || st != CUBLAS_STATUS_SUCCESS) {
        return end(me, st);
    }
    std::memset(found, 0, sizeof(*found));
    found->algo.data[0] = hash_of(p);
    for (int i = 0; i < 4; i++) {
        uint64_t align =
            pref->align[i] < MAX_ALIGN ? pref->align[i] : MAX_ALIGN;

        found->algo.data[1] |= (align > 0 ? align : 1) << (16 * i);
    }
    found->algo.data[2] = found->workspaceSize = pref->workspace;
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle,
                              cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    call call_("cublasLtMatmul");
    const product p = {desc, a_layout, b_layout, c_layout, d_layout};
    const void *const ptr[] = {a, b, c, d};
    CUstream_st *s = use_stream(stream, call_.name);
    uintptr_t room = (uintptr_t)workspace;
    cublasStatus_t st = check(p);
    task t = {};
    work w;

    if (call_.fault != cudaSuccess || s == nullptr ||
        st != CUBLAS_STATUS_SUCCESS) {
        return end(call_, s == nullptr ? CUBLAS_STATUS_INVALID_VALUE : st);
    }
    if (algo != nullptr &&
        (!is_for(algo, p, ptr) || workspace_bytes < algo->data[2])) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (handle->gpu != s->gpu) {
        report("device: a cuBLASLt handle of GPU %d is used for GPU %d",
               handle->gpu, s->gpu);
    }
    operation op = declared(s, "product");
    std::memcpy(&t.alpha, alpha, sizeof(t.alpha));
    std::memcpy(&t.beta, beta, sizeof(t.beta));
    op.is_good = fill_task(t, s, name_of_work(op), w, p, ptr);
    op.touches.push_back({room, room + workspace_bytes, WRITE});
    op.held = std::move(w.held);
    op.run = [t] { t.run(); };
    submit(s, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
