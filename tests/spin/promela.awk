# SPDX-License-Identifier: MIT
# A schedule in the nodes format to a Promela model: one process per stage that
# goes through its stream, one channel without buffer per pair of stages and
# direction, a slot of one for each validation message. A process may pause
# before any node, so all orders of progress are covered.
#
#     zbplan -f nodes ... | awk -v placement=v -v variant=0 -f promela.awk
#
# placement is v, loop or linear. Many schedules share one model, because a C
# compiler has to digest it: the environment variable VARIANT says which one
# runs. -v n_stage=P prints the channels for up to P stages, -v variant=K the
# processes of one schedule and its part of the file "init".
BEGIN { n = 0 }

{
    node[n] = $1 " " $2 " " $3 " " $4
    at[n++] = count[$1]++
    if ($1 >= p) p = $1 + 1
    if ($3 >= n_chunk) n_chunk = $3 + 1
    if ($4 >= m) m = $4 + 1
}

function virtual(stage, chunk) {
    return placement == "v" && chunk == 1 ? 2 * p - 1 - stage \
                                          : chunk * p + stage
}

function stage_of(v) {
    return placement == "v" && v >= p ? 2 * p - 1 - v : v % p
}

function chunk_of(v) {
    return int(v / p)
}

function cell(chunk, mb) {
    return chunk * m + mb
}

# The input that a node makes for another chunk of its own stage.
function hand_on(stage, chunk, mb, step, thing,    to) {
    to = virtual(stage, chunk) + step
    if (to >= 0 && to < p * n_chunk && stage_of(to) == stage)
        printf " %s[%d] = 1;", thing, cell(chunk_of(to), mb)
}

function emit_f(stage, chunk, mb) {
    if (virtual(stage, chunk) > 0)
        printf " assert(act_in[%d]);", cell(chunk, mb)
    printf " f[%d] = 1;", cell(chunk, mb)
    hand_on(stage, chunk, mb, 1, "act_in")
}

function emit_b(stage, chunk, mb) {
    printf " assert(f[%d]);", cell(chunk, mb)
    if (virtual(stage, chunk) < p * n_chunk - 1)
        printf " assert(grad_in[%d]);", cell(chunk, mb)
    printf " b[%d] = 1;", cell(chunk, mb)
    hand_on(stage, chunk, mb, -1, "grad_in")
}

function emit_w(chunk, mb) {
    printf " assert(b[%d]); w[%d] = 1;", cell(chunk, mb), cell(chunk, mb)
}

# The chunk in a message is the receiver's.
function emit_send(stage, chunk, mb, kind, step, made,    to) {
    to = virtual(stage, chunk) + step
    printf " assert(%s[%d]); c_%d_%d!%s,%d,%d;", made, cell(chunk, mb), stage,
        stage_of(to), kind, chunk_of(to), mb
}

function emit_recv(stage, chunk, mb, kind, step, thing,    from) {
    from = virtual(stage, chunk) + step
    printf " c_%d_%d?%s,%d,%d; %s[%d] = 1;", stage_of(from), stage, kind,
        chunk, mb, thing, cell(chunk, mb)
}

function emit(text,    x) {
    split(text, x, " ")
    printf "    /* %s */", text
    if (x[2] == "F") emit_f(x[1], x[3], x[4])
    else if (x[2] == "B") emit_b(x[1], x[3], x[4])
    else if (x[2] == "W") emit_w(x[3], x[4])
    else if (x[2] == "BW") { emit_b(x[1], x[3], x[4]); emit_w(x[3], x[4]) }
    else if (x[2] == "SEND_FORWARD")
        emit_send(x[1], x[3], x[4], "forward", 1, "f")
    else if (x[2] == "RECV_FORWARD")
        emit_recv(x[1], x[3], x[4], "forward", -1, "act_in")
    else if (x[2] == "SEND_BACKWARD")
        emit_send(x[1], x[3], x[4], "backward", -1, "b")
    else if (x[2] == "RECV_BACKWARD")
        emit_recv(x[1], x[3], x[4], "backward", 1, "grad_in")
    else if (x[2] == "SEND_POST_VALIDATION")
        printf " slot_%d!1;", x[1] - 1
    else if (x[2] == "RECV_POST_VALIDATION")
        printf " slot_%d?1;", x[1]
    else printf " skip;"
    printf "\n"
}

function channels(    a, b) {
    print "mtype = { forward, backward };"
    for (a = 0; a < n_stage; a++) {
        printf "chan slot_%d = [1] of { bit };\n", a
        for (b = 0; b < n_stage; b++)
            if (a != b)
                printf "chan c_%d_%d = [0] of { mtype, byte, byte };\n", a, b
    }
}

END {
    if (n_stage > 0) channels()
    printf "    :: c_expr { chosen == %d } ->", variant >"init"
    for (i = 0; i < n; i++) {
        split(node[i], x, " ")
        if (i == 0 || x[1] != last) {
            if (i > 0) print "}"
            printf "proctype run_%d_%d()\n{\n", variant, x[1]
            printf "    bit f[%d], b[%d], w[%d], act_in[%d], grad_in[%d];\n", \
                n_chunk * m, n_chunk * m, n_chunk * m, n_chunk * m, n_chunk * m
            last = x[1]
            printf " run run_%d_%d();", variant, x[1] >"init"
        }
        emit(node[i])
    }
    if (n > 0) print "}"
    print "" >"init"
}
