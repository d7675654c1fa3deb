/* SPDX-License-Identifier: MIT
 *
 * Graphs: the kernels and products that a stream was told to do while it was
 * captured. Nothing is done or checked then but that its addresses are memory;
 * each launch of the graph does all of it in the order of that stream, and each
 * time every operation is checked as if it had been enqueued anew.
 */
#include "fakecuda/fake_int.h"

namespace fake
{

touch name_of_work(const operation &op)
{
    touch t;

    t.what = intern(op.name);
    return t;
}

static void enqueue(CUstream_st *s, const operation &op)
{
    touch me = begin_work(s, op.name);
    bool ok = op.is_good;
    work w;

    if (!op.is_declared) {
        report("undeclared: %s is launched and nothing says what it touches",
               me.what->c_str());
    }
    for (const range &r : op.touches) {
        ok = (r.lo == r.hi ||
              (is_page_locked(r.lo, r.hi) ? access_host(s, me, r)
                                          : access_device(s, me, r, false))) &&
             ok;
    }
    if (ok) {
        w.what = me.what;
        w.held = op.held;
        w.run = op.run;
        push(s, std::move(w));
    }
}

/* One operation of a stream, checked and enqueued, with the faults that were
 * asked for. */
static void perform(CUstream_st *s, const operation &op)
{
    if (!hold_back(s, op.name, [=] { enqueue(s, op); })) {
        enqueue(s, op);
        let_go(s);
    }
    if (!op.touches.empty() && hits(FAKE_FREE, op.name)) {
        const allocation *a = find_allocation(op.touches[0].lo);

        give_back((void *)(a != nullptr ? a->start : op.touches[0].lo));
    }
}

void submit(CUstream_st *s, operation &&op)
{
    if (s->capture != nullptr) {
        s->capture->push_back(std::move(op));
    } else {
        perform(s, op);
    }
}

bool refuses_capture(const CUstream_st *s, const char *call)
{
    if (s->capture != nullptr) {
        report("misuse: %s while %s is captured", call,
               s->name.empty() ? "a stream" : s->name.c_str());
    }
    return s->capture != nullptr;
}

} // namespace fake

using namespace fake;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode)
{
    call c("cudaStreamBeginCapture");
    CUstream_st *s = use_stream(stream, c.name);

    if (s == nullptr || c.fault != cudaSuccess || refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (mode != cudaStreamCaptureModeThreadLocal) {
        report("misuse: a capture that forbids other threads' calls is not "
               "emulated");
        return c.end(cudaErrorInvalidValue);
    }
    s->capture = std::make_unique<std::vector<operation>>();
    return c.end(cudaSuccess);
}

/* The capture ends whatever comes of it. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    call c("cudaStreamEndCapture");
    CUstream_st *s = use_stream(stream, c.name);
    std::unique_ptr<std::vector<operation>> all;

    *graph = nullptr;
    if (s == nullptr || s->capture == nullptr) {
        report("misuse: %s ends nothing", c.name);
        return c.end(cudaErrorInvalidResourceHandle);
    }
    all = std::move(s->capture);
    if (c.fault != cudaSuccess) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    *graph = new CUgraph_st{*all};
    the().n_live++;
    return c.end(cudaSuccess);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec,
                                          cudaGraph_t graph,
                                          unsigned long long flags)
{
    call c("cudaGraphInstantiateWithFlags");

    must_be_quiet(c.name);
    if (c.fault != cudaSuccess || graph == nullptr || flags != 0) {
        return c.end(cudaErrorInvalidValue);
    }
    *exec = new CUgraphExec_st{graph->all, me().gpu};
    the().n_live++;
    return c.end(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    call c("cudaGraphDestroy");

    delete graph;
    the().n_live--;
    return c.end(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    call c("cudaGraphExecDestroy");

    delete exec;
    the().n_live--;
    return c.end(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    call c("cudaGraphLaunch");
    CUstream_st *s = use_stream(stream, c.name);

    if (s == nullptr || c.fault != cudaSuccess || refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (exec->gpu != s->gpu) {
        report("device: a graph of GPU %d is launched on GPU %d", exec->gpu,
               s->gpu);
        return c.end(cudaErrorInvalidValue);
    }
    for (const operation &op : exec->all) {
        perform(s, op);
    }
    return c.end(cudaSuccess);
}
