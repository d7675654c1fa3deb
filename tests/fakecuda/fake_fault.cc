/* SPDX-License-Identifier: MIT
 *
 * Faults that a test asks for, and a second opinion on what they do: all
 * accesses since then, compared pair by pair.
 */
#include "fakecuda/fake_int.h"

namespace fake
{

/* The fault is of this kind and the operation is one of those asked for. */
static bool is_meant(enum fake_fault kind, const std::string &name)
{
    const fault &f = the().asked;

    return f.kind == kind && name.find(f.in_name) != std::string::npos;
}

bool hits(enum fake_fault kind, const std::string &name)
{
    fault &f = the().asked;

    if (!is_meant(kind, name) || ++f.n_seen != f.at) {
        return false;
    }
    the().has_failed = true;
    f.what = name;
    return true;
}

static bool hold(enum fake_fault kind, CUstream_st *s, const std::string &name,
                 std::function<void()> &&later)
{
    fault &f = the().asked;

    if (!is_meant(kind, name) || ++f.n_seen != f.at) {
        return false;
    }
    f.held = std::move(later);
    f.stream = s;
    f.what = name;
    return true;
}

bool hold_back(CUstream_st *s, const std::string &name,
               std::function<void()> &&later)
{
    return hold(FAKE_SWAP, s, name, std::move(later));
}

bool hold_exchange(CUstream_st *s, const std::string &name,
                   std::function<void()> &&later)
{
    return hold(FAKE_SWAP_EXCHANGE, s, name, std::move(later));
}

static void do_held()
{
    std::function<void()> later = std::move(the().asked.held);

    the().asked.held = nullptr;
    later();
}

void let_go(CUstream_st *s)
{
    const fault &f = the().asked;

    if (f.held && f.kind == FAKE_SWAP && f.stream == s) {
        the().has_failed = true;
        do_held();
    }
}

void let_exchange_go(int gpu)
{
    const fault &f = the().asked;

    if (f.held && f.kind == FAKE_SWAP_EXCHANGE && f.stream->gpu == gpu) {
        the().has_failed = true;
        do_held();
    }
}

void let_go_before_wait()
{
    const fault &f = the().asked;

    if (f.held && f.stream->owner == me().id) {
        do_held();
    }
}

/* ---- all accesses -------------------------------------------------------- */

void trace(const touch &me, const range &r, const clock_of &before)
{
    auto &all = the().traced;

    if (the().asked.kind == FAKE_NO_FAULT) {
        return;
    }
    if (all.empty() || !(all.back().me == me)) {
        all.push_back({me, before, {}});
    }
    all.back().ranges.push_back(r);
}

static bool conflict(const traced_work &a, const traced_work &b)
{
    for (const range &x : a.ranges) {
        for (const range &y : b.ranges) {
            if (x.lo < y.hi && y.lo < x.hi && ((x.mode | y.mode) & WRITE)) {
                return true;
            }
        }
    }
    return false;
}

/* What was enqueued later never comes before. */
static bool has_unordered(const std::vector<traced_work> &all)
{
    for (size_t j = 0; j < all.size(); j++) {
        for (size_t i = 0; i < j; i++) {
            if (!all[i].me.is_before(all[j].before) &&
                conflict(all[i], all[j])) {
                return true;
            }
        }
    }
    return false;
}

} // namespace fake

using namespace fake;

void fake_cuda_fault(enum fake_fault kind, const char *in_name, uint64_t k)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);

    s.asked = fault();
    s.asked.kind = kind;
    s.asked.in_name = in_name != nullptr ? in_name : "";
    s.asked.at = k;
    s.traced.clear();
    s.has_failed = false;
}

uint64_t fake_cuda_n_fault_places(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return the().asked.n_seen;
}

const char *fake_cuda_fault_text(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return the().asked.what.c_str();
}

int fake_cuda_has_unordered(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return has_unordered(the().traced);
}
