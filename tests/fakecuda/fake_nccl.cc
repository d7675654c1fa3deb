/* SPDX-License-Identifier: MIT
 *
 * Communicators of the emulated NCCL: how they come to be, what they are asked
 * for, and how they end.
 */
#include "fakecuda/fake_int.h"

#include <algorithm>
#include <cstring>

#include "nccl.h"

namespace fake
{

/* Messages from one rank to another, in order. */
struct lane {
    std::deque<std::shared_ptr<transfer>> open; /* one side is there */
    int n_ahead[2] = {};                        /* ... of that side */
    bool is_wanted[2] = {}, is_connected = false;
};

/* The ranks that belong together. */
struct clique {
    int n = 0, n_joined = 0, n_finalized = 0;
    std::vector<ncclComm *> rank;
    std::map<std::pair<int, int>, lane> lanes;
};

/* What a group, or one call, asked for. */
struct request {
    struct item {
        ncclComm *comm;
        int peer, side;
        uintptr_t at;
        size_t bytes;
        CUstream_st *stream;
        const std::string *exchange;
    };
    std::vector<item> items;
    bool is_launched = false;
};

} // namespace fake

using namespace fake;

struct ncclComm {
    std::shared_ptr<clique> all;
    int me = 0, gpu = 0;
    uint64_t owner = 0;
    bool is_live = true, has_joined = false;
    bool is_finalizing = false, is_finalized = false;
    std::shared_ptr<request> asked; /* NULL: it is done with all */
    int n_polls = 0;                /* until it says what it is done with */
    std::vector<std::pair<std::shared_ptr<transfer>, int>> messages;
};

namespace fake
{

static thread_local int depth = 0;
static thread_local std::shared_ptr<request> group;

static std::string name_of(const ncclComm *c)
{
    return "the communicator of rank " + std::to_string(c->me) + " on GPU " +
           std::to_string(c->gpu);
}

static ncclResult_t fault_of(const call &c)
{
    return c.fault == cudaErrorMemoryAllocation ? ncclSystemError
                                                : ncclUnhandledCudaError;
}

/* The communicator, when there is one; `is_owners`: the call is its thread's.
 */
static ncclComm *use_comm(ncclComm *comm, const char *call, bool is_owners)
{
    auto it = the().comms.find(comm);

    if (it == the().comms.end() || !it->second->is_live) {
        report("misuse: %s uses a communicator that does not exist", call);
        return nullptr;
    }
    if (is_owners && comm->owner != me().id) {
        report("thread: %s uses %s, which another thread made", call,
               name_of(comm).c_str());
    }
    return comm;
}

static bool is_busy(const ncclComm *c)
{
    return !c->has_joined || c->asked != nullptr ||
           (c->is_finalizing && !c->is_finalized);
}

/* One that can be asked for something new. */
static ncclComm *use_idle(ncclComm *comm, const char *call)
{
    ncclComm *c = use_comm(comm, call, true);

    if (c != nullptr && is_busy(c)) {
        report("nccl: %s while %s is not done with what it was asked for", call,
               name_of(c).c_str());
        return nullptr;
    }
    return c;
}

/* ---- messages ------------------------------------------------------------ */

/* Those that came and were waited for need not be known any more. */
static void forget_arrived(ncclComm *c)
{
    c->messages.erase(std::remove_if(c->messages.begin(), c->messages.end(),
                                     [](const auto &m) {
                                         return m.first->has_arrived() &&
                                                was_waited_for(*m.first);
                                     }),
                      c->messages.end());
}

/* First messages of two ranks wait until both have asked for theirs. */
static bool connect(const request::item &i)
{
    int from = i.side == SENDS ? i.comm->me : i.peer;
    int to = i.side == SENDS ? i.peer : i.comm->me;
    lane &l = i.comm->all->lanes[{from, to}];

    l.is_wanted[i.side] = true;
    if (!l.is_connected && l.is_wanted[SENDS] && l.is_wanted[TAKES]) {
        l.is_connected = true;
        the().calls["connection"]++;
    }
    return l.is_connected;
}

static message make_message(const request::item &i)
{
    int from = i.side == SENDS ? i.comm->me : i.peer;
    int to = i.side == SENDS ? i.peer : i.comm->me;
    lane &l = i.comm->all->lanes[{from, to}];
    message m;

    if (l.n_ahead[1 - i.side] > 0) {
        m.with = l.open.front();
        l.open.pop_front();
        l.n_ahead[1 - i.side]--;
    } else {
        m.with = std::make_shared<transfer>();
        m.with->gpu[SENDS] = i.comm->all->rank[(size_t)from]->gpu;
        m.with->gpu[TAKES] = i.comm->all->rank[(size_t)to]->gpu;
        l.open.push_back(m.with);
        l.n_ahead[i.side]++;
    }
    m.side = i.side;
    m.stream = i.stream;
    m.at = i.at;
    m.exchange = i.exchange;
    m.with->size[i.side] = i.bytes;
    forget_arrived(i.comm);
    i.comm->messages.emplace_back(m.with, i.side);
    the().calls["message"]++;
    return m;
}

static void launch_now(const std::shared_ptr<request> &r)
{
    std::vector<message> all;

    for (const request::item &i : r->items) {
        if (i.comm->is_live) {
            all.push_back(make_message(i));
        }
    }
    launch_messages(all);
}

/* An exchange may have a fault; messages between two are launched as they
 * come. */
static void launch(const std::shared_ptr<request> &r)
{
    const request::item &first = r->items.front();
    std::string name =
        first.exchange != nullptr ? "exchange " + *first.exchange : "";

    r->is_launched = true;
    if (first.exchange == nullptr) {
        launch_now(r);
        return;
    }
    if (hold_back(first.stream, name, [r] { launch_now(r); }) ||
        hold_exchange(first.stream, name, [r] { launch_now(r); })) {
        return;
    }
    launch_now(r);
    let_go(first.stream);
    let_exchange_go(first.stream->gpu);
}

/* Go on with what was asked for, as far as it goes. */
static void advance(ncclComm *c)
{
    bool is_connected = true;

    if (c->asked == nullptr) {
        return;
    }
    for (const request::item &i : c->asked->items) {
        is_connected = connect(i) && is_connected;
    }
    if (!is_connected || c->n_polls-- > 0) {
        return;
    }
    if (!c->asked->is_launched) {
        launch(c->asked);
    }
    c->asked.reset();
}

/* The communicators have what they were asked for; some need a moment. */
static ncclResult_t post(const std::shared_ptr<request> &r)
{
    for (const request::item &i : r->items) {
        i.comm->asked = r;
        i.comm->n_polls = (int)(the().calls["message"] % 3);
        (void)connect(i);
    }
    return r->items.empty() ? ncclSuccess : ncclInProgress;
}

static ncclResult_t ask(const char *name, ncclComm *comm, int peer, int side,
                        const void *at, size_t bytes, cudaStream_t stream)
{
    call c(name);
    ncclComm *it = use_idle(comm, c.name);
    CUstream_st *s = use_stream(stream, c.name);
    request::item item = {it,    peer, side,
                          (uintptr_t)at, bytes, s,
                          s != nullptr ? s->exchange : nullptr};
    std::shared_ptr<request> r = group;

    if (c.fault != cudaSuccess) {
        return fault_of(c);
    }
    if (it == nullptr || s == nullptr || peer < 0 || peer >= it->all->n ||
        peer == it->me || bytes == 0) {
        return ncclInvalidArgument;
    }
    if (it->is_finalizing) {
        report("misuse: %s by %s, which was finalized", c.name,
               name_of(it).c_str());
        return ncclInvalidUsage;
    }
    if (s->gpu != it->gpu) {
        report("device: %s by %s in a stream of GPU %d", c.name,
               name_of(it).c_str(), s->gpu);
        return ncclInvalidUsage;
    }
    if (depth > 0) {
        r->items.push_back(item);
        return ncclSuccess;
    }
    r = std::make_shared<request>();
    r->items.push_back(item);
    return post(r);
}

/* ---- the end of a communicator ------------------------------------------- */

/* What it was asked for is done by all ranks. */
static bool is_drained(const ncclComm *c)
{
    for (const auto &[t, side] : c->messages) {
        if (!t->is_dropped[side] && !t->has_arrived()) {
            return false;
        }
    }
    return c->all->n_finalized == c->all->n;
}

static void give_up(ncclComm *c)
{
    for (const auto &[t, side] : c->messages) {
        drop_message(t, side);
    }
    c->messages.clear();
    c->asked.reset();
}

void give_up_messages()
{
    for (const auto &entry : the().comms) {
        for (const auto &[t, side] : entry.second->messages) {
            t->give_up(side);
        }
    }
}

void forget_communicators()
{
    the().comms.clear();
    the().cliques.clear();
    the().under_way.clear();
}

static bool has_lost_rank(const ncclComm *c)
{
    auto now = std::chrono::steady_clock::now();

    for (const ncclComm *r : c->all->rank) {
        const gpu *g = r != nullptr ? &the().gpus[(size_t)r->gpu] : nullptr;

        if (g != nullptr && g->is_mute && now >= g->told) {
            return true;
        }
    }
    return false;
}

} // namespace fake

/* ---- calls --------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress"};

    return (size_t)result < sizeof(texts) / sizeof(texts[0])
               ? texts[result]
               : "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    call c("ncclGetUniqueId");
    uint64_t number = ++the().n_cliques;

    if (c.fault != cudaSuccess) {
        return fault_of(c);
    }
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id->internal, &number, sizeof(number));
    the().cliques[number] = std::make_shared<clique>();
    return ncclSuccess;
}

/* 0, or what is wrong with a rank that wants to join. */
static const char *refusal(const clique *all, int n, int rank,
                           const ncclConfig_t *config)
{
    if (config == nullptr || config->blocking != 0) {
        return "only communicators that do not block are emulated";
    }
    if (all == nullptr || rank < 0 || rank >= n ||
        (all->n > 0 && all->n != n) ||
        (all->n > 0 && all->rank[(size_t)rank] != nullptr)) {
        return "no such id or rank, or it is taken";
    }
    return nullptr;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    call c("ncclCommInitRankConfig");
    auto made = std::make_shared<ncclComm>();
    uint64_t number;
    const char *why;

    std::memcpy(&number, id.internal, sizeof(number));
    auto it = the().cliques.find(number);
    std::shared_ptr<clique> all =
        it != the().cliques.end() ? it->second : nullptr;
    why = refusal(all.get(), n_ranks, rank, config);
    if (why != nullptr) {
        report("misuse: ncclCommInitRankConfig: %s", why);
        return ncclInvalidArgument;
    }
    if (c.fault != cudaSuccess) {
        return fault_of(c);
    }
    must_be_quiet(c.name);
    all->n = n_ranks;
    all->rank.resize((size_t)n_ranks, nullptr);
    for (const ncclComm *other : all->rank) {
        if (other != nullptr && other->gpu == me().gpu) {
            report("nccl: ranks %d and %d of a communicator are both on GPU %d",
                   other->me, rank, me().gpu);
        }
    }
    made->all = all;
    made->me = rank;
    made->gpu = me().gpu;
    made->owner = me().id;
    made->n_polls = rank;
    *comm = made.get();
    all->rank[(size_t)rank] = made.get();
    all->n_joined++;
    the().n_live++;
    the().comms.emplace(made.get(), made);
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    call c("ncclCommGetAsyncError", false);
    ncclComm *it = use_comm(comm, c.name, false);

    if (it == nullptr) {
        return ncclInvalidArgument;
    }
    if (has_lost_rank(it)) {
        *state = ncclRemoteError;
        return ncclSuccess;
    }
    if (!it->has_joined && it->all->n_joined == it->all->n &&
        it->n_polls-- <= 0) {
        it->has_joined = true;
    }
    /* Who only looks does not launch another thread's work. */
    if (it->owner == me().id) {
        advance(it);
    }
    it->is_finalized = it->is_finalizing && is_drained(it);
    *state = is_busy(it) ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    call c("ncclCommFinalize", false);
    ncclComm *it = use_idle(comm, c.name);

    if (it == nullptr) {
        return ncclInvalidArgument;
    }
    if (!it->is_finalizing) {
        it->is_finalizing = true;
        it->all->n_finalized++;
    }
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    call c("ncclCommDestroy", false);
    ncclComm *it = use_comm(comm, c.name, true);

    if (it == nullptr) {
        return ncclInvalidArgument;
    }
    if (!it->is_finalized) {
        report("misuse: ncclCommDestroy of %s before it was finalized",
               name_of(it).c_str());
    }
    must_be_quiet(c.name);
    give_up(it);
    it->is_live = false;
    the().n_live--;
    return ncclSuccess;
}

/* Another thread may stop it, when the owner is not inside. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    call c("ncclCommAbort", false);
    ncclComm *it = use_comm(comm, c.name, false);

    if (it == nullptr) {
        return ncclInvalidArgument;
    }
    give_up(it);
    it->is_live = false;
    it->all->n_finalized += !it->is_finalizing;
    the().n_live--;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0) {
        group = std::make_shared<request>();
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    call c("ncclGroupEnd", false);
    std::shared_ptr<request> r = group;

    if (depth == 0) {
        report("misuse: ncclGroupEnd without ncclGroupStart");
        return ncclInvalidUsage;
    }
    if (--depth > 0) {
        return ncclSuccess;
    }
    group.reset();
    return post(r);
}

ncclResult_t ncclSend(const void *buff, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream)
{
    (void)type; /* bytes */
    return ask("ncclSend", comm, peer, SENDS, buff, count, stream);
}

ncclResult_t ncclRecv(void *buff, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    (void)type;
    return ask("ncclRecv", comm, peer, TAKES, buff, count, stream);
}
