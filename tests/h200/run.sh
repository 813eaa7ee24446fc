#!/usr/bin/env bash
# Checks and measurements on a real GPU, in parts; see README.md.
set -u
cd "$(dirname "$0")"
OUT=${OUT:-/tmp/xputrace-h200}
BIN=${BIN:-/tmp/xputrace-h200-bin}
export XPUTRACE=${XPUTRACE:-$PWD/../../target/release/xputrace}
CUDA=${CUDA:-/usr/local/cuda}
mkdir -p "$OUT" "$BIN"
for dir in "$CUDA"/targets/x86_64-linux "$CUDA"/extras/CUPTI; do [ -e "$dir/include/cupti.h" ] && CUPTI=$dir; done
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
for it in "$CUPTI"/lib*/libcupti.so.13; do [ -e "$it" ] && export CUPTI_REAL=$it; done
export LD_LIBRARY_PATH=$CUDA/targets/x86_64-linux/lib:${LD_LIBRARY_PATH:-}

build() {
    local host=-fno-omit-frame-pointer,-fno-optimize-sibling-calls,-pthread
    local nvcc="nvcc -O2 -arch=native -w -Xcompiler $host"
    $nvcc -cudart shared -o "$BIN/llm" llm.cu &
    $nvcc -cudart shared -o "$BIN/requests" requests.cu &
    $nvcc -cudart static -o "$BIN/requests_static" requests.cu &
    $nvcc -cudart shared -o "$BIN/graphs" graphs.cu &
    $nvcc -cudart shared -o "$BIN/contents" contents.cu &
    $nvcc -cudart shared -o "$BIN/graphcost" graphcost.cu &
    $nvcc -cudart shared -o "$BIN/costs" costs.cu -ldl &
    $nvcc -cudart shared -o "$BIN/both" both.cu &
    $nvcc -cudart shared -o "$BIN/loop" loop.cu &
    $nvcc -cudart shared -o "$BIN/occupancy" occupancy.cu &
    $nvcc -cudart shared -o "$BIN/ranges" ranges.cu &
    $nvcc -cudart shared -o "$BIN/sets" sets.cu -lcuda &
    # A number of an architecture embeds PTX; native does not.
    for name in vectors gemm hundred faults; do nvcc -O2 -w -std=c++17 -arch=sm_90 -o "$BIN/$name" $name.cu & done
    nvcc -O2 -w -std=c++17 -gencode arch=compute_90,code=compute_90 -o "$BIN/gemm_ptx" gemm.cu &
    nvcc -O2 -w -std=c++17 -gencode arch=compute_90,code=sm_90 -o "$BIN/vectors_machine_code" vectors.cu &
    nvcc -O2 -w -arch=sm_90 -lineinfo -Xcompiler $host -cudart shared -o "$BIN/inside" inside.cu &
    nvcc -O2 -w -arch=sm_90 -lineinfo -cudart shared -o "$BIN/device_calls" calls.cu &
    nvcc -O2 -w -std=c++17 -arch=sm_90 -cudart shared -o "$BIN/clusters" clusters.cu &
    nvcc -O2 -w -std=c++17 -arch=sm_90 -cudart shared -o "$BIN/arguments" arguments.cu &
    nvcc -O2 -w -arch=sm_90 -Xcompiler $host -cudart shared -o "$BIN/late" late.cu &
    nvcc -O2 -w -gencode arch=compute_90,code=sm_90 -Xcompiler $host -cudart shared -o "$BIN/late_machine_code" late.cu &
    nvcc -O2 -w -std=c++17 -arch=sm_90 -lineinfo -o "$BIN/banks" banks.cu &
    $nvcc -cudart shared -o "$BIN/managed" managed.cu &
    nvcc -O2 -w -std=c++17 -gencode arch=compute_90,code=[sm_90,compute_90] -compress-mode=none -cudart static -o "$BIN/twins" twins.cu -lcuda &
    nvcc -O2 -w -std=c++17 -ptx -arch=compute_90 -o "$BIN/twins.ptx" twins.cu &
    g++ -O2 -fno-omit-frame-pointer -I"$CUDA/include" -o "$BIN/driver" driver.cpp -L"$CUDA/lib64/stubs" -lcuda &
    g++ -O2 -shared -fPIC -o "$BIN/libfloor.so" floor.cpp -I"$CUPTI/include" -I"$CUDA/include" -L"$CUPTI/lib" -lcupti &
    g++ -O2 -shared -fPIC -o "$BIN/libempty.so" empty.cpp &
    for name in copies calls peers contexts externals; do
        gcc -O1 -w -o "$BIN/$name" ../live/programs/$name.c -L"$CUDA/lib64" -L"$CUDA/lib64/stubs" -lcudart -lcuda -ldl -lpthread &
    done
    gcc -O1 -w -shared -fPIC -Wl,-soname,libcupti.so.13 -o "$BIN/libcuptisum.so" ../live/programs/libcuptisum.so.c -ldl -lpthread &
    wait
    cp profiled.py transformer.py jax_step.py "$BIN/"
    ls "$BIN"
}

part=${1:-all}
[ -x "$BIN/llm" ] || build >"$OUT/build.log" 2>&1 || { cat "$OUT/build.log"; exit 1; }
export OUT BIN
case $part in
    build) ls "$BIN" ;;
    attach | bpftime | costs | device_costs | graphcost | inside | launches | ledgers | others | own | paired | reach | two_gpus) python3 "$part.py" "${@:2}" ;;
    agree)
        for program in "transformer.py train 30" "jax_step.py 300"; do
            echo "$program"
            (cd "$BIN" && python3 "$OLDPWD/agreement.py" "${2:-200}" "${3:-20}" python3 $program) || exit 1
        done
        ;;
    tools)
        mkdir -p "$OUT/tools"
        for script in launchshape stages launchwhy ncclstat gpumem waitstat nvtxtime summary; do
            (cd "$BIN" && "$XPUTRACE" -q $script -o "$OUT/tools/$script.txt" -- python3 transformer.py train 30 >/dev/null) || echo "$script: failed"
        done
        ls "$OUT/tools"
        ;;
    twins)
        # TWINS is the example of the crate xputrace-nvidia, COLLECTOR its library.
        for way in "" leave silent; do
            "${TWINS:-../../target/release/examples/twins}" $way "${COLLECTOR:-../../target/release/libxputrace_collector.so}" "$BIN/twins" "$BIN/twins.ptx" || exit 1
        done
        ;;
    check | measure | record | report) python3 h200.py "$part" "${@:2}" ;;
    *) echo "usage: run.sh build|check|inside|device_costs|bpftime|tools|ledgers|agree|reach|costs|launches|others|own|graphcost|attach|two_gpus|twins|paired|measure|record|report" >&2; exit 2 ;;
esac
