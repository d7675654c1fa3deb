/* SPDX-License-Identifier: MIT
 *
 * Matrix products by cuBLASLt. Its matrices are column-major, so what it is
 * given is the transposed product: C' = op(B)' op(A)'; a row-major matrix with
 * row stride ld is its transpose in column-major order with leading dimension
 * ld.
 *
 * What the library is asked about a product is kept for its sizes, types and
 * alignments, so that a product it has seen costs one call.
 */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include <cublasLt.h>
#include <string.h>

#include "zb/hash.h"
#include "zb/mem.h"

/* A sum that is cut into parts keeps a float per element of the result for each
 * of them; so many parts are worth their memory. The rest is for counters. */
#define MOST_PARTS 16
#define COUNTER_BYTES ((size_t)64 << 10)

/* Alignments beyond that of the widest loads make no difference. */
#define MOST_ALIGN 256
#define BIAS_ALIGN 16

/* Lengths of sequences may differ from step to step for ever; when there are so
 * many products, all are forgotten. */
#define MOST_PRODUCTS 4096

/* No padding: keys are compared as bytes. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, adds, has_bias, dtype, c_dtype;
    int32_t align_a, align_b, align_c, zero;
    int64_t workspace; /* bytes that may be used beside the operands */
};

struct product {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct zb_cuda_gemm {
    cublasLtHandle_t lt;
    struct product **slot; /* [n_slots], a power of two, at most half full */
    size_t n_slots, n_products;
};

static enum zb_status check_lt(const struct zb_device *dev, cublasStatus_t st,
                               const char *what)
{
    const char *hint = "";

    if (st == CUBLAS_STATUS_SUCCESS) {
        return ZB_OK;
    }
    (void)cudaGetLastError();
    if (st == CUBLAS_STATUS_EXECUTION_FAILED) {
        hint = "; the GPU may be lost: see nvidia-smi and the kernel's log for "
               "lines with Xid";
    }
    return zb_fail(st == CUBLAS_STATUS_ALLOC_FAILED ? ZB_ENOMEM : ZB_EDEVICE,
                   "device %d, GPU %d: cuBLASLt: %s: %s%s", dev->index,
                   dev->gpu, what, cublasLtGetStatusString(st), hint);
}

/* ---- one product --------------------------------------------------------- */

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == ZB_DTYPE_BF16  ? CUDA_R_16BF
           : dtype == ZB_DTYPE_F16 ? CUDA_R_16F
                                   : CUDA_R_32F;
}

static void free_product(struct product *p)
{
    if (p->c != NULL) {
        (void)cublasLtMatrixLayoutDestroy(p->c);
    }
    if (p->b != NULL) {
        (void)cublasLtMatrixLayoutDestroy(p->b);
    }
    if (p->a != NULL) {
        (void)cublasLtMatrixLayoutDestroy(p->a);
    }
    if (p->desc != NULL) {
        (void)cublasLtMatmulDescDestroy(p->desc);
    }
    zb_free(p);
}

static enum zb_status set(const struct zb_device *dev, struct product *p,
                          cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t size)
{
    return check_lt(dev,
                    cublasLtMatmulDescSetAttribute(p->desc, what, value, size),
                    "describe a product");
}

static enum zb_status set_bias(const struct zb_device *dev, struct product *p,
                               const void *bias)
{
    return set(dev, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

/* The operand that is stored as [rows, cols] with row stride ld. */
static enum zb_status stored(const struct zb_device *dev, int32_t dtype,
                             int64_t rows, int64_t cols, int64_t ld,
                             cublasLtMatrixLayout_t *layout_out)
{
    return check_lt(dev,
                    cublasLtMatrixLayoutCreate(layout_out, type_of(dtype),
                                               (uint64_t)cols, (uint64_t)rows,
                                               ld),
                    "describe a matrix");
}

/* Floats are multiplied as floats, and all sums are of floats. */
static enum zb_status describe(const struct zb_device *dev, struct product *p,
                               const void *bias)
{
    const struct key *k = &p->key;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cublasOperation_t of_b = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_a = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;

    ZB_TRY(check_lt(
        dev,
        cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "new product"));
    ZB_TRY(set(dev, p, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof(of_b)));
    ZB_TRY(set(dev, p, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof(of_a)));
    if (k->has_bias) {
        ZB_TRY(set(dev, p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                   sizeof(epilogue)));
        ZB_TRY(set_bias(dev, p, bias));
    }
    ZB_TRY(stored(dev, k->dtype, k->trans_a ? k->k : k->m,
                  k->trans_a ? k->m : k->k, k->lda, &p->a));
    ZB_TRY(stored(dev, k->dtype, k->trans_b ? k->n : k->k,
                  k->trans_b ? k->k : k->n, k->ldb, &p->b));
    return stored(dev, k->c_dtype, k->m, k->n, k->ldc, &p->c);
}

static enum zb_status prefer(const struct zb_device *dev,
                             cublasLtMatmulPreference_t pref,
                             cublasLtMatmulPreferenceAttributes_t what,
                             const void *value, size_t size)
{
    return check_lt(
        dev, cublasLtMatmulPreferenceSetAttribute(pref, what, value, size),
        "say what is preferred");
}

/* Sums that are cut into parts are added up in floats, in a fixed order. */
static enum zb_status set_preference(const struct zb_device *dev,
                                     cublasLtMatmulPreference_t pref,
                                     const struct key *k)
{
    const size_t workspace = (size_t)k->workspace;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align[] = {(uint32_t)k->align_b, (uint32_t)k->align_a,
                              (uint32_t)k->align_c, (uint32_t)k->align_c};
    static const cublasLtMatmulPreferenceAttributes_t what[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };

    ZB_TRY(prefer(dev, pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                  &workspace, sizeof(workspace)));
    ZB_TRY(prefer(dev, pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  &scheme, sizeof(scheme)));
    for (size_t i = 0; i < ZB_COUNT_OF(what); i++) {
        ZB_TRY(prefer(dev, pref, what[i], &align[i], sizeof(align[i])));
    }
    return ZB_OK;
}

static enum zb_status no_way(const struct zb_device *dev, const struct key *k,
                             const char *why)
{
    return zb_fail(
        ZB_EUNSUPPORTED,
        "device %d, GPU %d: cuBLASLt has no product %lld x %lld x %lld of %s "
        "with a result of %s (row strides %lld, %lld, %lld): %s",
        dev->index, dev->gpu, (long long)k->m, (long long)k->n,
        (long long)k->k, zb_dtype_str((enum zb_dtype)k->dtype),
        zb_dtype_str((enum zb_dtype)k->c_dtype), (long long)k->lda,
        (long long)k->ldb, (long long)k->ldc, why);
}

static enum zb_status choose(const struct zb_device *dev, struct product *p)
{
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulPreference_t pref = NULL;
    cublasStatus_t lt = CUBLAS_STATUS_SUCCESS;
    enum zb_status st;
    int n = 0;

    memset(&found, 0, sizeof(found));
    ZB_TRY(check_lt(dev, cublasLtMatmulPreferenceCreate(&pref),
                    "new preference"));
    st = set_preference(dev, pref, &p->key);
    if (st == ZB_OK) {
        lt = cublasLtMatmulAlgoGetHeuristic(dev->gemm->lt, p->desc, p->b, p->a,
                                            p->c, p->c, pref, 1, &found, &n);
    }
    (void)cublasLtMatmulPreferenceDestroy(pref);
    ZB_TRY(st);
    if (lt != CUBLAS_STATUS_SUCCESS || n < 1) {
        return no_way(dev, &p->key,
                      lt != CUBLAS_STATUS_SUCCESS ? cublasLtGetStatusString(lt)
                                                  : "no algorithm");
    }
    p->algo = found.algo;
    return ZB_OK;
}

static enum zb_status new_product(const struct zb_device *dev,
                                  const struct key *key, const void *bias,
                                  struct product **product_out)
{
    struct product *p = zb_alloc(sizeof(*p));
    enum zb_status st;

    if (p == NULL) {
        return ZB_ENOMEM;
    }
    p->key = *key;
    st = describe(dev, p, bias);
    if (st == ZB_OK) {
        st = choose(dev, p);
    }
    if (st != ZB_OK) {
        free_product(p);
        return st;
    }
    *product_out = p;
    return ZB_OK;
}

/* ---- all products of a device -------------------------------------------- */

static struct product **find(struct product **slot, size_t n_slots,
                             const struct key *key)
{
    size_t i = (size_t)zb_hash(key, sizeof(*key)) & (n_slots - 1);

    while (slot[i] != NULL && memcmp(&slot[i]->key, key, sizeof(*key)) != 0) {
        i = (i + 1) & (n_slots - 1);
    }
    return &slot[i];
}

static void forget_all(struct zb_cuda_gemm *gemm)
{
    for (size_t i = 0; i < gemm->n_slots; i++) {
        if (gemm->slot[i] != NULL) {
            free_product(gemm->slot[i]);
            gemm->slot[i] = NULL;
        }
    }
    gemm->n_products = 0;
}

static enum zb_status grow(struct zb_cuda_gemm *gemm)
{
    size_t n = gemm->n_slots > 0 ? 2 * gemm->n_slots : 64;
    struct product **slot = zb_alloc_array(n, sizeof(*slot));

    if (slot == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < gemm->n_slots; i++) {
        if (gemm->slot[i] != NULL) {
            *find(slot, n, &gemm->slot[i]->key) = gemm->slot[i];
        }
    }
    zb_free(gemm->slot);
    gemm->slot = slot;
    gemm->n_slots = n;
    return ZB_OK;
}

static enum zb_status get(const struct zb_device *dev, const struct key *key,
                          const void *bias, struct product **product_out)
{
    struct zb_cuda_gemm *gemm = dev->gemm;
    struct product **at = find(gemm->slot, gemm->n_slots, key);

    if (*at == NULL) {
        struct product *p = NULL;

        ZB_TRY(new_product(dev, key, bias, &p));
        *at = p;
        *product_out = p;
        gemm->n_products++;
        return ZB_OK;
    }
    *product_out = *at;
    return ZB_OK;
}

/* Before a look-up: room for one more. */
static enum zb_status make_room(struct zb_cuda_gemm *gemm)
{
    if (gemm->n_products >= MOST_PRODUCTS) {
        forget_all(gemm);
    }
    return 2 * (gemm->n_products + 1) > gemm->n_slots ? grow(gemm) : ZB_OK;
}

enum zb_status zb_cuda_gemm_new(const struct zb_device *dev,
                                struct zb_cuda_gemm **gemm_out)
{
    struct zb_cuda_gemm *gemm = zb_alloc(sizeof(*gemm));
    enum zb_status st;

    if (gemm == NULL) {
        return ZB_ENOMEM;
    }
    st = check_lt(dev, cublasLtCreate(&gemm->lt), "start");
    if (st != ZB_OK) {
        zb_free(gemm);
        return st;
    }
    *gemm_out = gemm;
    return ZB_OK;
}

void zb_cuda_gemm_free(struct zb_cuda_gemm *gemm)
{
    if (gemm == NULL) {
        return;
    }
    forget_all(gemm);
    (void)cublasLtDestroy(gemm->lt);
    zb_free(gemm->slot);
    zb_free(gemm);
}

/* ---- the kernel ---------------------------------------------------------- */

static enum zb_status check(const struct zb_k_gemm *p)
{
    if (!zb_dtype_is_storage(p->dtype)) {
        return zb_fail(ZB_EINVAL, "gemm of %s", zb_dtype_str(p->dtype));
    }
    if (p->c_dtype != p->dtype && p->c_dtype != ZB_DTYPE_REAL) {
        return zb_fail(ZB_EINVAL, "gemm of %s has a result of %s",
                       zb_dtype_str(p->dtype), zb_dtype_str(p->c_dtype));
    }
    if (p->lda < (p->trans_a ? p->m : p->k) ||
        p->ldb < (p->trans_b ? p->k : p->n) || p->ldc < p->n) {
        return zb_fail(ZB_EINVAL,
                       "gemm %lld x %lld x %lld: a row stride is "
                       "shorter than its row",
                       (long long)p->m, (long long)p->n, (long long)p->k);
    }
    return ZB_OK;
}

/* The largest power of two that divides the address. */
static int32_t align_of(const void *ptr)
{
    uintptr_t at = (uintptr_t)ptr | MOST_ALIGN;

    return (int32_t)(at & (~at + 1));
}

size_t zb_cuda_product_bytes(const struct zb_k_gemm *p)
{
    double parts = (double)p->m * (double)p->n * sizeof(float) * MOST_PARTS;

    if (!(parts < (double)(ZB_CUDA_WORKSPACE_BYTES - COUNTER_BYTES))) {
        return ZB_CUDA_WORKSPACE_BYTES;
    }
    return COUNTER_BYTES + (parts > 0 ? (size_t)parts : 0);
}

/* What the stream has, or less where the product can not need it: then the
 * algorithm is the same on every stream that was planned for it. */
static size_t workspace_of(const struct zb_stream *stream,
                           const struct zb_k_gemm *p)
{
    size_t most = zb_cuda_product_bytes(p);

    return most < stream->workspace_bytes ? most : stream->workspace_bytes;
}

static struct key key_of(const struct zb_stream *stream,
                         const struct zb_k_gemm *p, int adds, int has_bias)
{
    return (struct key){
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .lda = p->lda,
        .ldb = p->ldb,
        .ldc = p->ldc,
        .trans_a = p->trans_a != 0,
        .trans_b = p->trans_b != 0,
        .adds = adds,
        .has_bias = has_bias,
        .dtype = (int32_t)p->dtype,
        .c_dtype = (int32_t)p->c_dtype,
        .align_a = align_of(p->a),
        .align_b = align_of(p->b),
        .align_c = align_of(p->c),
        .workspace = (int64_t)workspace_of(stream, p),
    };
}

static enum zb_status multiply(struct zb_stream *stream,
                               const struct zb_k_gemm *p, int adds,
                               const void *bias)
{
    const struct zb_device *dev = stream->dev;
    const float one = 1, beta = adds ? 1.0f : 0.0f;
    struct product *q;
    struct key key;

    ZB_TRY(zb_cuda_stream_workspace(stream));
    key = key_of(stream, p, adds, bias != NULL);
    ZB_TRY(make_room(dev->gemm));
    ZB_TRY(get(dev, &key, bias, &q));
    if (bias != NULL) {
        ZB_TRY(set_bias(dev, q, bias));
    }
    stream->stats.products++;
    return check_lt(dev,
                    cublasLtMatmul(dev->gemm->lt, q->desc, &one, p->b, q->b,
                                   p->a, q->a, &beta, p->c, q->c, p->c, q->c,
                                   &q->algo, stream->workspace,
                                   (size_t)key.workspace, stream->cuda),
                    "product");
}

/* The library adds a bias of the result's type; any other is put into C
 * first. */
enum zb_status zb_cuda_gemm(struct zb_stream *stream, const void *params)
{
    const struct zb_k_gemm *p = params;
    int fits = p->bias != NULL && p->dtype == p->c_dtype &&
               align_of(p->bias) >= BIAS_ALIGN;
    int has_start = p->bias != NULL && !(fits && p->k > 0);

    if (p->m <= 0 || p->n <= 0) {
        return ZB_OK;
    }
    ZB_TRY(check(p));
    if (has_start || (p->k <= 0 && !p->accumulate)) {
        ZB_TRY(zb_cuda_gemm_start(stream, p));
    }
    return p->k <= 0 ? ZB_OK
                     : multiply(stream, p, p->accumulate || has_start,
                                has_start ? NULL : p->bias);
}
