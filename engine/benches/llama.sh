#!/usr/bin/env bash
# Puts llama.cpp's own benchmark and a model of the same shape into target/bench, for `cargo bench -p engine --bench compare`.
# Takes some twenty minutes and 16 GB of disk. `bash engine/benches/llama.sh PATH/TO/make_gguf.py`: a script that writes a GGUF
# file of the 4B shape with random weights, given the file's name.
set -euo pipefail
cd "$(dirname "$0")/../.."
make_gguf=$(realpath "${1:?say which script makes the GGUF file}")
mkdir -p target/bench
cd target/bench

if [ ! -x llama-bench ]; then
    python3 -m venv venv
    venv/bin/pip install --quiet numpy gguf
    venv/bin/pip download --quiet --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz
    source=llama_cpp_python-0.3.36/vendor/llama.cpp
    options=(-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF)
    # Its AMX kernels crash on quantised models at this version, so they are left out.
    if grep -q amx_tile /proc/cpuinfo; then
        options+=(-DCMAKE_C_FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
            -DCMAKE_CXX_FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16")
    fi
    cmake -S "$source" -B llama "${options[@]}"
    cmake --build llama --target llama-bench llama-quantize -j "$(nproc)"
    cp llama/bin/llama-bench llama/bin/llama-quantize .
fi

[ -e bf16.gguf ] || venv/bin/python "$make_gguf" bf16.gguf
[ -e q8_0.gguf ] || ./llama-quantize bf16.gguf q8_0.gguf Q8_0
[ -e q4_0.gguf ] || ./llama-quantize bf16.gguf q4_0.gguf Q4_0
