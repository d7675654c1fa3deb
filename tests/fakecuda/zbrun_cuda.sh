#!/bin/sh
# SPDX-License-Identifier: MIT
# zbrun on emulated GPUs: what a user reads when something is wrong with them,
# what is said of them when nothing is.
: "${srcdir:=.}"
. "$srcdir/tests/cli/lib.sh"
zbrun=$bin/tests/fakecuda/zbrun_fake
FAKE_CUDA_DELAY_US=0 ZB_NVML_LIBRARY=$bin/tests/fakecuda/fake_nvml.so
export FAKE_CUDA_DELAY_US ZB_NVML_LIBRARY
unset OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY \
    CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES

# ---- trouble -----------------------------------------------------------------

# trouble NAME: a run on cuda fails; without a copy test, which would be first.
trouble() {
    FAKE_CUDA_TROUBLE=$1
    export FAKE_CUDA_TROUBLE
    run 1 -b cuda -s parallel.p2p=host "$tmp/llama.ini"
    unset FAKE_CUDA_TROUBLE
}

trouble no-driver
err 'error: cuda: no NVIDIA driver is installed'
trouble old-driver
err 'error: cuda: the NVIDIA driver is too old: it is for CUDA 11.4, this program'
trouble no-gpu
err 'error: cuda: there is no NVIDIA GPU'
trouble busy
err 'error: device [01], .*device [01], GPU [01]: use the GPU: .*the GPU is busy: another'
FAKE_CUDA_TROUBLE=busy run 1 -b cuda "$tmp/llama.ini"
err 'error: copy test between GPUs 0 and 1: .*the GPU is busy: another'
trouble lost:300
err 'error: device [01],.*the GPU may be lost: .*lines with Xid'

# A GPU that should work and does not is worth a warning, none at all is not.
FAKE_CUDA_TROUBLE=old-driver run 0 "$tmp/llama.ini"
err 'warning: the backend is cpu: cuda: the NVIDIA driver is too old'
FAKE_CUDA_TROUBLE=no-driver run 0 "$tmp/llama.ini"
grep -q 'backend is cpu' "$tmp/stderr" && fail 'a missing driver is warned of'

FAKE_CUDA_GPU_BYTES=200000 run 1 -b cuda -s schedule.cost_cache=none \
    -s parallel.p2p=host "$tmp/llama.ini"
err '^memory (bytes) .*stage 0 .*stage 1$'
err '^  parameters '
err '^  total '
err 'error: device [01], .*out of memory: [0-9]* bytes .* were asked for'

CUDA_LAUNCH_BLOCKING=1 run 0 -b cuda "$tmp/llama.ini"
err 'warning: cuda: CUDA_LAUNCH_BLOCKING=1 makes every launch wait'
CUDA_LAUNCH_BLOCKING=0 run 0 -b cuda "$tmp/llama.ini"
grep -q CUDA_LAUNCH_BLOCKING "$tmp/stderr" && fail 'CUDA_LAUNCH_BLOCKING=0'

# ---- what is said ------------------------------------------------------------

run 0 -v -b cuda -g 1,0 --report "$tmp/report.html" "$tmp/llama.ini"
err 'debug: start-up: costs [0-9.]* ms, plan [0-9.]* ms, backend [0-9.]* ms, all'
err 'debug: start-up: session [0-9.]* ms, .*first step [0-9.]* ms'
err "debug: threads of devices 0 to 1: not bound: its GPU's place"
[ "$(sed -n 1p "$tmp/out/log.jsonl" | grep -c '"gpus":\[{"gpu":1,"memory_used":2147483648,"power_w":200,"sm_mhz":1002,"temperature_c":52,"throttle":\[\]},{"gpu":0,"memory_used":1073741824,')" -eq 1 ] || {
    fail 'no GPUs in the log'
    cat "$tmp/out/log.jsonl"
}
grep -q '<td>1</td><td>[12]</td><td>2</td><td>200</td>' "$tmp/report.html" ||
    fail 'no GPUs in the report'

FAKE_NVML_THROTTLE=0x20 FAKE_NVML_REFUSES=nvmlDeviceGetPowerUsage \
    run 0 -b cuda -s train.log_interval=2 -s train.steps=3 "$tmp/llama.ini"
err 'warning: step 1: GPU 0 slows itself down (sw_thermal)'
[ "$(grep -c 'slows itself' "$tmp/stderr")" -eq 1 ] || fail 'warned twice'
grep -q '"step":1,.*"throttle":\["sw_thermal"\]' "$tmp/out/log.jsonl" ||
    fail 'no GPUs in the first step'
grep -q '"step":3,.*"gpus"' "$tmp/out/log.jsonl" &&
    fail 'GPUs in a step that is not shown'
grep -q power_w "$tmp/out/log.jsonl" && fail 'a value that is not known'

ZB_NVML_LIBRARY='' run 0 -v -b cuda "$tmp/llama.ini"
err 'debug: .*power, clocks and memory are not known: NVML'
grep -q gpus "$tmp/out/log.jsonl" && fail 'GPUs without a library'
run 0 -b cpu "$tmp/llama.ini"
grep -q gpus "$tmp/out/log.jsonl" && fail 'GPUs on the cpu'

# A machine of two packages, with two cores and a GPU each.
sets() {
    printf '%s="%s" ' cpuset "$1" complete_cpuset "$1" nodeset "$2" \
        complete_nodeset "$2"
}
package() {
    cat <<XML
<object type="Package" os_index="$1" $(sets "$2" "$3")>
<object type="NUMANode" os_index="$1" $(sets "$2" "$3") local_memory="65536"/>
XML
    shift 3
    for i in "$1" "$2"; do
        set=$(printf '%#x' $((1 << i)))
        cat <<XML
<object type="Core" os_index="$i" $(sets "$set" "$4")>
<object type="PU" os_index="$i" $(sets "$set" "$4")/></object>
XML
    done
    cat <<XML
<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="fffe:[0$3-0$3]">
<object type="PCIDev" pci_busid="fffe:0$3:00.0"
 pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/>
</object></object>
XML
}
{
    cat <<XML
<?xml version="1.0"?>
<topology version="2.0">
<object type="Machine" os_index="0" $(sets 0xf 0x3) allowed_cpuset="0xf"
 allowed_nodeset="0x3">
XML
    package 0 0x3 0x1 0 1 1 0x1
    package 1 0xc 0x2 2 3 2 0x2
    echo '</object></topology>'
} >"$tmp/machine.xml"
HWLOC_XMLFILE=$tmp/machine.xml HWLOC_THISSYSTEM=0 \
    run 0 -v -b cuda -g 1,0 "$tmp/llama.ini"
err 'debug: thread of device 0: bound to CPUs 2-3, memory node 1$'
err 'debug: thread of device 1: bound to CPUs 0-1, memory node 0$'

OMP_PROC_BIND=true run 0 -v -b cuda "$tmp/llama.ini"
err 'not bound: OMP_PROC_BIND is set'
finish
