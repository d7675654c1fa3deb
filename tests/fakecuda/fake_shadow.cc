/* SPDX-License-Identifier: MIT
 *
 * Vector clocks, and who touched which bytes since.
 */
#include "fakecuda/fake_int.h"

#include <algorithm>

namespace fake
{

void join(clock_of &to, const clock_of &from)
{
    if (to.size() < from.size()) {
        to.resize(from.size(), 0);
    }
    for (size_t i = 0; i < from.size(); i++) {
        to[i] = std::max(to[i], from[i]);
    }
}

/* Make `at` a border if it lies inside a cell. */
void shadow::split(uintptr_t at)
{
    auto next = cells.upper_bound(at);

    if (next == cells.begin()) {
        return;
    }
    auto it = std::prev(next);
    if (it->first < at && at < it->second.end) {
        cell upper = it->second;

        it->second.end = at;
        cells.emplace_hint(next, at, std::move(upper));
    }
}

/* What a cell holds that an access of this kind must come after. */
static touch conflict(const cell &c, int mode, const clock_of &before)
{
    if (!c.write.is_before(before)) {
        return c.write;
    }
    if (mode & WRITE) {
        for (const touch &r : c.reads) {
            if (!r.is_before(before)) {
                return r;
            }
        }
    }
    return touch();
}

/* The new reader stands for those that it comes after. */
static void add_read(cell &c, const touch &me, const clock_of &before)
{
    c.reads.erase(
        std::remove_if(c.reads.begin(), c.reads.end(),
                       [&](const touch &r) { return r.is_before(before); }),
        c.reads.end());
    c.reads.push_back(me);
}

static bool is_same(const cell &a, const cell &b)
{
    return a.is_written == b.is_written && a.write == b.write &&
           a.reads == b.reads;
}

void shadow::note_read(uintptr_t lo, uintptr_t hi, const touch &me,
                       const clock_of &before)
{
    auto it = cells.lower_bound(lo);
    auto last = cells.end();

    while (lo < hi) {
        if (it == cells.end() || it->first > lo) {
            uintptr_t end = it == cells.end() ? hi : std::min(hi, it->first);
            cell fresh;

            fresh.end = end;
            it = cells.emplace_hint(it, lo, std::move(fresh));
        }
        add_read(it->second, me, before);
        it->second.is_written = true; /* one report is enough */
        lo = it->second.end;
        if (last != cells.end() && last->second.end == it->first &&
            is_same(last->second, it->second)) {
            last->second.end = lo;
            it = cells.erase(it);
        } else {
            last = it++;
        }
    }
}

void shadow::note_write(uintptr_t lo, uintptr_t hi, int mode, const touch &me)
{
    auto from = cells.lower_bound(lo), to = cells.lower_bound(hi);
    cell fresh;

    fresh.end = hi;
    fresh.is_written = !(mode & EMPTY);
    fresh.write = me;
    cells.emplace_hint(cells.erase(from, to), lo, std::move(fresh));
}

finding shadow::access(uintptr_t lo, uintptr_t hi, int mode, const touch &me,
                       const clock_of &before)
{
    finding f;
    uintptr_t at = lo;

    split(lo);
    split(hi);
    for (auto it = cells.lower_bound(lo);
         it != cells.end() && it->first < hi && f.other.slot < 0; ++it) {
        if (!f.is_unwritten && (it->first > at || !it->second.is_written)) {
            f.is_unwritten = true;
            f.unwritten_at = at;
        }
        at = it->second.end;
        f.other = conflict(it->second, mode, before);
        f.at = it->first;
    }
    if (!f.is_unwritten && f.other.slot < 0 && at < hi) {
        f.is_unwritten = true;
        f.unwritten_at = at;
    }
    f.is_unwritten = f.is_unwritten && (mode & READ);
    if (mode & WRITE) {
        note_write(lo, hi, mode, me);
    } else {
        note_read(lo, hi, me, before);
    }
    return f;
}

touch shadow::pending(uintptr_t lo, uintptr_t hi, int mode,
                      const clock_of &before) const
{
    auto it = cells.upper_bound(lo);

    if (it != cells.begin()) {
        --it;
    }
    for (; it != cells.end() && it->first < hi; ++it) {
        if (it->second.end > lo) {
            touch found = conflict(it->second, mode, before);

            if (found.slot >= 0) {
                return found;
            }
        }
    }
    return touch();
}

void shadow::sweep(const clock_of &before)
{
    for (auto it = cells.begin(); it != cells.end();) {
        it = conflict(it->second, WRITE, before).slot < 0 ? cells.erase(it)
                                                          : std::next(it);
    }
}

} // namespace fake
