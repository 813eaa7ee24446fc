#!/usr/bin/env python3
"""Writes a program that prints the parameters of CUDA's calls, and the names of their errors.

    ./calls.py INCLUDE > calls.cpp          INCLUDE has cuda.h, generated_cuda_meta.h and the like
    g++ -std=c++17 -w -I INCLUDE calls.cpp -o calls && ./calls > cupti-13.0/calls.txt

The compiler answers, so sizes and offsets are those that CUPTI's callbacks get. One line per call:

    params NAME SIZE PARAMETER:KIND:OFFSET …
    error driver|runtime CODE NAME

NAME is that of its callback id in layouts.txt. SIZE is that of the structure, in bytes. KIND is `u`, `s` or `f` (unsigned,
signed, floating point) with the size in bytes, `p` for a pointer, and `x` for a structure that is passed by value.
"""
import pathlib
import re
import sys

include = pathlib.Path(sys.argv[1])
METAS = ["generated_cuda_meta.h", "generated_cuda_runtime_api_meta.h"]

print("#include <cstddef>\n#include <cstdio>\n#include <type_traits>\n#include <cuda.h>\n#include <cuda_runtime_api.h>")
# Types of CUDA 3 that only the structures of its calls mention: addresses had 32 bits, the others occur as pointers.
print("typedef unsigned CUdeviceptr_v1;")
for gone in ["ARRAY_DESCRIPTOR", "ARRAY3D_DESCRIPTOR", "MEMCPY2D", "MEMCPY3D"]:
    print(f"struct CUDA_{gone}_v1;")
for meta in METAS:
    print(f"#include <{meta}>")
print(r"""
template <typename T> void parameter(const char *name, size_t offset) {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_pointer_v<U>) printf(" %s:p:%zu", name, offset);
  else if constexpr (std::is_enum_v<U>)
    printf(" %s:%c%zu:%zu", name, std::is_signed_v<std::underlying_type_t<U>> ? 's' : 'u', sizeof(U), offset);
  else if constexpr (std::is_floating_point_v<U>) printf(" %s:f%zu:%zu", name, sizeof(U), offset);
  else if constexpr (std::is_integral_v<U>) printf(" %s:%c%zu:%zu", name, std::is_signed_v<U> ? 's' : 'u', sizeof(U), offset);
  else printf(" %s:x:%zu", name, offset);
}
#define BEGIN(call) printf("params %s %zu", #call, sizeof(call##_params));
#define PARAMETER(call, name) parameter<decltype(call##_params::name)>(#name, offsetof(call##_params, name));
int main() {""")
seen = set()
for meta in METAS:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (include / meta).read_text(), flags=re.S)
    for body, name in re.findall(r"typedef struct \w+_params_st \{(.*?)\}\s*(\w+)_params;", text, flags=re.S):
        if name in seen:
            continue
        seen.add(name)
        names = [re.search(r"(\w+)\s*(?:\[[^\]]*\])*\s*$", it)[1] for it in body.split(";") if it.strip()]
        print(f"  BEGIN({name}) " + " ".join(f"PARAMETER({name}, {it})" for it in names) + " puts(\"\");")
for layer, header, prefix in [("driver", "cuda.h", "CUDA_ERROR_"), ("runtime", "driver_types.h", "cudaError")]:
    text = (include / header).read_text()
    for name in sorted(set(re.findall(rf"^\s*({prefix}\w+)\s*=", text, flags=re.M))):
        print(f'  printf("error {layer} %d {name}\\n", (int){name});')
print("}")
