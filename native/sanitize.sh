#!/bin/sh
# The tests of the native kernels on a build with the address and undefined-behaviour sanitizers.
set -e
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
folder=$PWD/native/build/sanitized
"$python" -m pip install --quiet --disable-pip-version-check nanobind cmake ninja
"$python" -m cmake -G Ninja -S native -B "$folder" -DFOREDRAFT_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DPython_EXECUTABLE="$python" > /dev/null
"$python" -m ninja -C "$folder" > /dev/null
mkdir -p "$folder/path/foredraft_native"
cp native/foredraft_native/__init__.py "$folder"/_native*.so "$folder/path/foredraft_native/"
libraries=$(for name in libasan.so libubsan.so libstdc++.so.6; do "${CXX:-c++}" -print-file-name=$name; done | tr '\n' ' ')
export LD_PRELOAD="$libraries" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$folder/path" OMP_NUM_THREADS=1
exec "$python" -m pytest -q tests/native "$@"
