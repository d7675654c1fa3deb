/* SPDX-License-Identifier: MIT
 *
 * Products of the emulated cuBLASLt against sums in double, and its rules.
 */
#include "fakecuda/fake_rig.h"

#include <cmath>

#include "cublasLt.h"
#include "kern/half.h"

#define M 6
#define COLS 5
#define K 9
#define LD 11
/* Elements of each operand, and the operands one after the other. */
#define SIZE (LD * LD)
static const size_t room_bytes = 4096;

#define LT_OK(call) CU_ASSERT_EQUAL((call), CUBLAS_STATUS_SUCCESS)

struct variant {
    bool is_ta, is_tb, has_bias, adds;
    cudaDataType type, out;
};

struct lt {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulPreference_t pref = nullptr;
    cublasLtMatmulAlgo_t algo = {};
    float alpha = 0.5f, beta = 0;

    explicit lt(const variant &v, const void *bias, uint32_t align = 256);
    ~lt();
    cublasStatus_t run(cudaStream_t s, const void *pa, const void *pb, void *pc,
                       void *room) const
    {
        return cublasLtMatmul(handle, desc, &alpha, pa, a, pb, b, &beta, pc, c,
                              pc, c, &algo, room, room_bytes, s);
    }
};

lt::lt(const variant &v, const void *bias, uint32_t align)
{
    const cublasOperation_t ta = v.is_ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = v.is_tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;

    beta = v.adds ? 2.0f : 0.0f;
    LT_OK(cublasLtCreate(&handle));
    LT_OK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta,
                                         sizeof(ta)));
    LT_OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb,
                                         sizeof(tb)));
    if (v.has_bias) {
        LT_OK(cublasLtMatmulDescSetAttribute(
            desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
        LT_OK(cublasLtMatmulDescSetAttribute(
            desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)));
    }
    LT_OK(cublasLtMatrixLayoutCreate(&a, v.type, v.is_ta ? K : M,
                                     v.is_ta ? M : K, LD));
    LT_OK(cublasLtMatrixLayoutCreate(&b, v.type, v.is_tb ? COLS : K,
                                     v.is_tb ? K : COLS, LD));
    LT_OK(cublasLtMatrixLayoutCreate(&c, v.out, M, COLS, LD));
    LT_OK(cublasLtMatmulPreferenceCreate(&pref));
    LT_OK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room_bytes,
        sizeof(room_bytes)));
    LT_OK(cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align,
        sizeof(align)));
    LT_OK(cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, pref, 1,
                                         &found, &n));
    CU_ASSERT_EQUAL(n, 1);
    algo = found.algo;
}

lt::~lt()
{
    LT_OK(cublasLtMatmulPreferenceDestroy(pref));
    LT_OK(cublasLtMatrixLayoutDestroy(a));
    LT_OK(cublasLtMatrixLayoutDestroy(b));
    LT_OK(cublasLtMatrixLayoutDestroy(c));
    LT_OK(cublasLtMatmulDescDestroy(desc));
    LT_OK(cublasLtDestroy(handle));
}

/* ---- numbers ------------------------------------------------------------- */

static uint16_t half_of(cudaDataType type, float x)
{
    return type == CUDA_R_16BF ? zb_bf16_of_float(x) : zb_f16_of_float(x);
}

static float of_half(cudaDataType type, uint16_t x)
{
    return type == CUDA_R_16BF ? zb_float_of_bf16(x) : zb_float_of_f16(x);
}

/* Small multiples of 1/16 are exact in every type. */
static std::vector<float> draw(unsigned long long seed)
{
    std::vector<float> x(SIZE);
    zbt_rng rng = {seed};

    for (float &v : x) {
        v = (float)zbt_rand_in(&rng, -16, 16) / 16;
    }
    return x;
}

static std::vector<char> encode(cudaDataType type, const std::vector<float> &x)
{
    std::vector<char> bytes(4 * SIZE);

    for (size_t i = 0; i < SIZE; i++) {
        uint16_t half = half_of(type, x[i]);

        if (type == CUDA_R_32F) {
            std::memcpy(&bytes[4 * i], &x[i], 4);
        } else {
            std::memcpy(&bytes[2 * i], &half, 2);
        }
    }
    return bytes;
}

static float decode(cudaDataType type, const std::vector<char> &bytes, size_t i)
{
    uint16_t half;
    float f;

    if (type == CUDA_R_32F) {
        std::memcpy(&f, &bytes[4 * i], 4);
        return f;
    }
    std::memcpy(&half, &bytes[2 * i], 2);
    return of_half(type, half);
}

/* Memory for A, B, C, bias and workspace, with numbers in the first four. */
struct operands {
    std::vector<float> host[4];
    char *dev[4];
    char *room;

    operands(cudaStream_t s, const variant &v)
    {
        for (int i = 0; i < 4; i++) {
            std::vector<char> bytes;

            host[i] = draw((unsigned long long)i + 1);
            bytes = encode(i < 2 ? v.type : v.out, host[i]);
            dev[i] = (char *)new_memory(bytes.size());
            CUDA_OK(cudaMemcpyAsync(dev[i], bytes.data(), bytes.size(),
                                    cudaMemcpyHostToDevice, s));
            CUDA_OK(cudaStreamSynchronize(s));
        }
        room = (char *)new_memory(room_bytes);
    }
    void touch(cudaStream_t s) const
    {
        touches(s, "test",
                {{dev[0], 4 * SIZE, ZB_READ},
                 {dev[1], 4 * SIZE, ZB_READ},
                 {dev[2], 4 * SIZE, ZB_READ_WRITE},
                 {dev[3], 4 * SIZE, ZB_READ}});
    }
};

static double element(const operands &o, const variant &v, size_t i, size_t j)
{
    double sum = 0;

    for (size_t l = 0; l < K; l++) {
        sum += (double)o.host[0][v.is_ta ? i * LD + l : l * LD + i] *
               (double)o.host[1][v.is_tb ? l * LD + j : j * LD + l];
    }
    return 0.5 * sum + (v.adds ? 2 * (double)o.host[2][j * LD + i] : 0) +
           (v.has_bias ? (double)o.host[3][i] : 0);
}

static void check_elements(const operands &o, const variant &v,
                           const std::vector<char> &got)
{
    double eps = v.out == CUDA_R_32F ? 1e-6 : v.out == CUDA_R_16F ? 1e-3 : 8e-3;

    for (size_t j = 0; j < COLS; j++) {
        for (size_t i = 0; i < M; i++) {
            double want = element(o, v, i, j);

            CU_ASSERT_DOUBLE_EQUAL((double)decode(v.out, got, j * LD + i), want,
                                   eps * (1 + std::fabs(want)));
        }
        /* Between the columns nothing is written. */
        CU_ASSERT_EQUAL(decode(v.out, got, j * LD + M), o.host[2][j * LD + M]);
    }
}

static void check_variant(const variant &v)
{
    rig r;
    operands o(r.a, v);
    lt t(v, o.dev[3]);
    std::vector<char> got(4 * SIZE);

    o.touch(r.a);
    LT_OK(t.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room));
    CUDA_OK(cudaMemcpyAsync(got.data(), o.dev[2], got.size(),
                            cudaMemcpyDeviceToHost, r.a));
    CUDA_OK(cudaStreamSynchronize(r.a));
    check_elements(o, v, got);
    CU_ASSERT(no_reports());
}

static void products_of_all_kinds_are_right()
{
    static const cudaDataType types[][2] = {{CUDA_R_32F, CUDA_R_32F},
                                            {CUDA_R_16BF, CUDA_R_16BF},
                                            {CUDA_R_16F, CUDA_R_16F},
                                            {CUDA_R_16BF, CUDA_R_32F},
                                            {CUDA_R_16F, CUDA_R_32F}};

    for (const auto &type : types) {
        for (int i = 0; i < 16; i++) {
            check_variant({(i & 1) != 0, (i & 2) != 0, (i & 4) != 0,
                           (i & 8) != 0, type[0], type[1]});
        }
    }
}

/* ---- rules --------------------------------------------------------------- */

static const variant plain = {false, false,      false,
                              false, CUDA_R_32F, CUDA_R_32F};

static void product_that_races_is_reported()
{
    rig r;
    operands o(r.a, plain);
    lt t(plain, nullptr);

    touches(r.b, "writer", {{o.dev[2], 4, ZB_WRITE}});
    CUDA_OK(launch_add(r.b, (float *)o.dev[2], nullptr, 1, 1));
    o.touch(r.a);
    LT_OK(t.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room));
    CU_ASSERT(reports("race:", {"test: product", "writer"}));
}

static void workspace_of_two_streams_is_reported()
{
    rig r;
    operands o(r.a, plain), p(r.b, plain);
    lt t(plain, nullptr);

    o.touch(r.a);
    LT_OK(t.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room));
    p.touch(r.b);
    LT_OK(t.run(r.b, p.dev[0], p.dev[1], p.dev[2], o.room));
    CU_ASSERT(reports("race:", {"bytes [0, 4096)"}));
}

static void operand_of_which_nothing_was_said_is_reported()
{
    rig r;
    operands o(r.a, plain);
    lt t(plain, nullptr);

    touches(r.a, "test",
            {{o.dev[0], 4 * SIZE, ZB_READ}, {o.dev[2], 4 * SIZE, ZB_WRITE}});
    LT_OK(t.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room));
    CU_ASSERT(reports("undeclared:", {"touches all of B"}));
}

static void algorithm_for_other_alignments_is_refused()
{
    rig r;
    operands o(r.a, plain);
    lt t(plain, nullptr), any(plain, nullptr, 4);

    o.touch(r.a);
    CU_ASSERT_EQUAL(t.run(r.a, o.dev[0] + 4, o.dev[1], o.dev[2], o.room),
                    CUBLAS_STATUS_INVALID_VALUE);
    LT_OK(any.run(r.a, o.dev[0] + 4, o.dev[1], o.dev[2], o.room));
    CU_ASSERT(no_reports());
}

static void algorithm_for_other_sizes_is_refused()
{
    rig r;
    operands o(r.a, plain);
    variant other = plain;
    lt t(plain, nullptr);

    other.is_ta = true;
    lt u(other, nullptr);
    u.algo = t.algo;
    o.touch(r.a);
    CU_ASSERT_EQUAL(u.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room),
                    CUBLAS_STATUS_INVALID_VALUE);
}

static void handle_of_another_gpu_is_reported()
{
    rig r;
    operands o(r.a, plain);

    CUDA_OK(cudaSetDevice(1));
    lt t(plain, nullptr);
    CUDA_OK(cudaSetDevice(0));
    o.touch(r.a);
    LT_OK(t.run(r.a, o.dev[0], o.dev[1], o.dev[2], o.room));
    CU_ASSERT(reports("device:", {"handle of GPU 1"}));
}

static void asked_for_failures_are_the_librarys()
{
    cublasLtHandle_t handle = nullptr;
    rig r;

    fake_cuda_fail_at(1, cudaErrorMemoryAllocation);
    CU_ASSERT_EQUAL(cublasLtCreate(&handle), CUBLAS_STATUS_ALLOC_FAILED);
    fake_cuda_fail_at(1, cudaErrorUnknown);
    CU_ASSERT_EQUAL(cublasLtCreate(&handle), CUBLAS_STATUS_EXECUTION_FAILED);
    CU_ASSERT_PTR_NULL(handle);
}

int main()
{
    static const zbt_case cases[] = {
        ZBT_CASE(products_of_all_kinds_are_right),
        ZBT_CASE(product_that_races_is_reported),
        ZBT_CASE(workspace_of_two_streams_is_reported),
        ZBT_CASE(operand_of_which_nothing_was_said_is_reported),
        ZBT_CASE(algorithm_for_other_alignments_is_refused),
        ZBT_CASE(algorithm_for_other_sizes_is_refused),
        ZBT_CASE(handle_of_another_gpu_is_reported),
        ZBT_CASE(asked_for_failures_are_the_librarys),
    };

    return zbt_run("fakecuda_lt", cases, sizeof(cases) / sizeof(cases[0]));
}
