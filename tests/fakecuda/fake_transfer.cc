/* SPDX-License-Identifier: MIT
 *
 * Messages between GPUs: how a send and its receive meet, what they touch, and
 * whether the order in which GPUs launch them can deadlock.
 */
#include "fakecuda/fake_int.h"

#include <algorithm>
#include <cstring>

namespace fake
{

/* ---- by the threads of streams ------------------------------------------- */

void transfer::come(int side, char *at)
{
    std::lock_guard<std::mutex> lock(mu);

    has_come[side] = true;
    bytes[side] = at;
    if (has_come[SENDS] && has_come[TAKES] && !has_given_up[SENDS] &&
        !has_given_up[TAKES]) {
        if (bytes[SENDS] != nullptr && bytes[TAKES] != nullptr) {
            std::memcpy(bytes[TAKES], bytes[SENDS],
                        std::min(size[SENDS], size[TAKES]));
        }
        is_done = true;
        cv.notify_all();
    }
}

void transfer::wait(int side)
{
    std::unique_lock<std::mutex> lock(mu);

    cv.wait(lock, [&] { return is_done || has_given_up[side]; });
}

void transfer::give_up(int side)
{
    std::lock_guard<std::mutex> lock(mu);

    has_given_up[side] = true;
    cv.notify_all();
}

bool transfer::has_arrived()
{
    std::lock_guard<std::mutex> lock(mu);

    return is_done;
}

/* ---- the order of launches ----------------------------------------------- */

static bool is_over(const unit &u)
{
    return std::all_of(u.parts.begin(), u.parts.end(),
                       [](const message &m) { return m.with->is_over; });
}

/* Let go what can if every GPU does one unit after the other. */
static void go_on()
{
    bool has_moved = true;

    while (has_moved) {
        has_moved = false;
        for (gpu &g : the().gpus) {
            while (!g.launched.empty() && is_over(g.launched.front())) {
                g.launched.pop_front();
                has_moved = true;
            }
            if (g.launched.empty()) {
                continue;
            }
            for (const message &m : g.launched.front().parts) {
                m.with->is_first[m.side] = true;
                if (m.with->is_first[1 - m.side] && !m.with->is_over) {
                    m.with->is_over = m.with->has_met = has_moved = true;
                }
            }
        }
    }
}

/* The part of the GPU's first unit whose other side can only come after
 * something that waits, in the end, for `end`; NULL: there is none. */
static const message *waits_for(int g, int end, std::vector<bool> &seen)
{
    const std::deque<unit> &launched = the().gpus[(size_t)g].launched;

    if (launched.empty() || seen[(size_t)g]) {
        return nullptr;
    }
    seen[(size_t)g] = true;
    for (const message &m : launched.front().parts) {
        int peer = m.with->gpu[1 - m.side];

        if (!m.with->is_over && !the().gpus[(size_t)peer].launched.empty() &&
            (peer == end || waits_for(peer, end, seen) != nullptr)) {
            return &m;
        }
    }
    return nullptr;
}

/* Report when GPU g, and others, wait for each other. */
static void check_order(int g)
{
    std::vector<bool> seen(the().gpus.size(), false);
    const message *m, *other;
    int peer;

    go_on();
    m = waits_for(g, g, seen);
    if (m == nullptr) {
        return;
    }
    peer = m->with->gpu[1 - m->side];
    other = &the().gpus[(size_t)peer].launched.front().parts[0];
    report("nccl: order: %s waits for GPU %d, which is at %s and waits, in the "
           "end, for GPU %d: a deadlock where a GPU does one after the other",
           m->with->who[m->side].what->c_str(), peer,
           other->with->who[other->side].what->c_str(), g);
    for (const message &part : the().gpus[(size_t)g].launched.front().parts) {
        part.with->is_over = true;
    }
    go_on();
}

/* ---- what may be under way ----------------------------------------------- */

static bool is_quiet(const transfer &t, int side)
{
    return !t.is_posted[side] || t.is_dropped[side] ||
           (t.has_met && t.who[side].is_before(the().waited_for));
}

/* Who has waited for one side of a message has waited for the other. */
bool was_waited_for(const transfer &t)
{
    bool is_sent = is_quiet(t, SENDS), is_taken = is_quiet(t, TAKES);

    return t.has_met ? is_sent || is_taken : is_sent && is_taken;
}

static void sweep(std::vector<std::shared_ptr<transfer>> &all)
{
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const auto &t) { return was_waited_for(*t); }),
              all.end());
}

static void note_under_way(const std::shared_ptr<transfer> &t)
{
    auto &all = the().under_way;

    all.push_back(t);
    if (all.size() % 256 == 0) {
        sweep(all);
    }
}

/* ---- launches ------------------------------------------------------------ */

static const char *const verbs[] = {"send", "receive"};

static void check_pair(const transfer &t)
{
    if (t.exchange[SENDS] != t.exchange[TAKES]) {
        report("nccl: %s meets %s", t.who[SENDS].what->c_str(),
               t.who[TAKES].what->c_str());
    }
    if (t.size[SENDS] != t.size[TAKES]) {
        report("nccl: %s of %zu bytes meets %s of %zu bytes",
               t.who[SENDS].what->c_str(), t.size[SENDS],
               t.who[TAKES].what->c_str(), t.size[TAKES]);
    }
}

/* What the receive's stream does from now on comes after the send. */
static void order_after_send(transfer &t)
{
    if (t.taker->is_live) {
        join(t.taker->clock, t.sent);
    }
}

/* NULL: nothing may be touched. */
static char *begin_message(const message &m, work &w)
{
    transfer &t = *m.with;
    CUstream_st *s = m.stream;
    range r = {m.at, m.at + t.size[m.side], m.side == SENDS ? READ : WRITE};
    bool ok;

    if (m.side == TAKES) {
        t.taker = s;
        if (t.is_posted[SENDS]) {
            order_after_send(t);
        }
    }
    t.exchange[m.side] = m.exchange;
    t.who[m.side] = begin_work(
        s, m.exchange != nullptr ? *m.exchange + ": " + verbs[m.side]
                                 : verbs[m.side]);
    t.is_posted[m.side] = true;
    ok = access_device(s, t.who[m.side], r, false);
    w.what = t.who[m.side].what;
    if (m.side == SENDS) {
        t.sent = s->clock;
    }
    if (t.is_posted[1 - m.side]) {
        check_pair(t);
        order_after_send(t);
    }
    return ok ? bytes_at(w, m.at) : nullptr;
}

/* The parts of one stream. */
static void push_messages(CUstream_st *s, const std::vector<message> &all)
{
    std::vector<std::pair<message, char *>> mine;
    work w;

    for (const message &m : all) {
        if (m.stream == s) {
            mine.emplace_back(m, begin_message(m, w));
            note_under_way(m.with);
        }
    }
    w.run = [mine, is_mute = the().gpus[(size_t)s->gpu].is_mute] {
        for (const auto &[m, at] : mine) {
            if (!is_mute) {
                m.with->come(m.side, at);
            }
        }
        for (const auto &[m, at] : mine) {
            m.with->wait(m.side);
        }
    };
    push(s, std::move(w));
}

void launch_messages(const std::vector<message> &all)
{
    std::map<int, unit> by_gpu;
    std::vector<CUstream_st *> streams;

    for (const message &m : all) {
        if (std::find(streams.begin(), streams.end(), m.stream) ==
            streams.end()) {
            streams.push_back(m.stream);
        }
    }
    for (CUstream_st *s : streams) {
        push_messages(s, all);
    }
    for (const message &m : all) {
        by_gpu[m.stream->gpu].parts.push_back(m);
    }
    for (const auto &[g, u] : by_gpu) {
        the().gpus[(size_t)g].launched.push_back(u);
        check_order(g);
    }
}

void drop_message(const std::shared_ptr<transfer> &t, int side)
{
    t->give_up(side);
    t->is_dropped[side] = t->is_over = true;
    go_on();
}

/* ---- what stops GPUs ----------------------------------------------------- */

void must_be_quiet(const char *call)
{
    auto &all = the().under_way;

    sweep(all);
    if (!all.empty()) {
        const transfer &t = *all.front();

        report("nccl: %s while %s may be under way: both may wait for ever",
               call, t.who[t.is_posted[SENDS] ? SENDS : TAKES].what->c_str());
        all.clear();
    }
}

} // namespace fake
